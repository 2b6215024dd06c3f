//! Pages of keys and values: their format and sizes, the buffers that hold them, and pages made on the host.

use super::kernels::page_words::{BLOCK, PageWords};
use crate::plan::Plan;
use crate::{BindOptions, Error, PAGE_TOKENS, Result};
use half::{bf16, f16};
use rusty_backend::{DeviceBuffer, GpuDevice, Owner};
use rusty_graph::KvLayer;

/// Bytes of a page of a layer.
pub(super) fn page_bytes(plan: &Plan, layer: usize, words: PageWords) -> u64 {
    let kv = plan.kv[layer];
    let words = words.token_words(kv.key_lanes());
    u64::from(halves(&kv)) * PAGE_TOKENS as u64 * u64::from(words) * 4
}

/// What a page of a layer holds: keys and values, or keys alone.
pub(super) fn halves(kv: &KvLayer) -> u32 {
    match kv.value_lanes() {
        0 => 1,
        _ => 2,
    }
}

/// A page of a layer that holds the keys and values of up to sixteen tokens from `first` on, and zeros; they are whole
/// prefixes' of the layer's widths.
pub(super) fn page_words(
    (keys, values): (&[f32], &[f32]),
    first: usize,
    layer: &KvLayer,
    kv: PageWords,
) -> Vec<u32> {
    let token = kv.token_words(layer.key_lanes()) as usize;
    let mut words = Vec::with_capacity(2 * PAGE_TOKENS * token);
    let all = [(keys, layer.key_lanes()), (values, layer.value_lanes())];
    for (half, (rows, width)) in all.iter().take(halves(layer) as usize).enumerate() {
        let rows = rows.chunks_exact(*width as usize);
        for row in rows.skip(first).take(PAGE_TOKENS) {
            let start = words.len();
            let row: Vec<f32> = row.iter().map(|v| kv.stored(*v)).collect();
            match kv {
                PageWords::F32 => words.extend(row.iter().map(|v| v.to_bits())),
                PageWords::F16 => words.extend(pairs(&row, |v| f16::from_f32(v).to_bits())),
                PageWords::Bf16 => words.extend(pairs(&row, |v| bf16::from_f32(v).to_bits())),
                PageWords::Codes(bits) => words.extend(
                    row.chunks_exact(BLOCK as usize)
                        .flat_map(|b| codes(b, bits)),
                ),
            }
            words.resize(start + token, 0);
        }
        words.resize((half + 1) * PAGE_TOKENS * token, 0);
    }
    words
}

/// A block of codes and its step, as `gpu/kernels/page_blocks.rs` stores them.
fn codes(block: &[f32], bits: u32) -> Vec<u32> {
    let mut lanes: [f32; BLOCK as usize] = std::array::from_fn(|i| block[i]);
    crate::rotation::rotate(&mut lanes);
    let (half, per_word) = ((1 << (bits - 1)) as f32, 32 / bits);
    let largest = lanes.iter().fold(0.0f32, |a, l| a.max(l.abs()));
    let step = largest / (half - 1.0);
    let inverse = if largest > 0.0 { 1.0 / step } else { 0.0 };
    let mut words = vec![0; bits as usize + 1];
    for (i, lane) in (0..).zip(lanes) {
        let code = ((lane * inverse).round() + half) as u32;
        words[(i / per_word) as usize] |= code << (i % per_word * bits);
    }
    words[bits as usize] = step.to_bits();
    words
}

/// Two lanes to a word.
fn pairs(row: &[f32], bits: impl Fn(f32) -> u16) -> impl Iterator<Item = u32> {
    let half = move |v: &f32| u32::from(bits(*v));
    let pairs = row.chunks(2);
    pairs.map(move |p| half(&p[0]) | p.get(1).map_or(0, &half) << 16)
}

/// How keys and values lie on a device.
pub(super) fn page_format(plan: &Plan, options: &BindOptions) -> Result<PageWords> {
    match options.kv.refusal(&plan.kv) {
        None => Ok(PageWords::of(options.kv)),
        Some(reason) => Err(Error::Target {
            target: plan.target.name.clone(),
            kernel: "attention".into(),
            reason,
        }),
    }
}

/// One buffer of pages per layer.
pub(super) fn caches(
    plan: &Plan,
    device: &dyn GpuDevice,
    words: PageWords,
    pages: u32,
) -> Result<Vec<DeviceBuffer>> {
    let target = device.target();
    let limit = target.max_binding_bytes.min(u64::from(u32::MAX) * 4);
    let tokens = u64::from(pages) * PAGE_TOKENS as u64;
    (0..plan.kv.len())
        .map(|layer| {
            let bytes = page_bytes(plan, layer, words) * u64::from(pages.max(1));
            if bytes > limit {
                return Err(Error::Target {
                    target: target.name.clone(),
                    kernel: format!("keys and values of layer {layer}"),
                    reason: format!(
                        "{tokens} tokens take {bytes} bytes, and {limit} fit a binding (a shorter context, fewer sequences \
                         at a time or a format of fewer bits take less)"
                    ),
                });
            }
            Ok(device.alloc(bytes, Owner::Kv, &format!("kv.{layer}"))?)
        })
        .collect()
}
