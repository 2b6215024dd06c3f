//! What an executable needs before its first step: kernels compiled, caches reserved, sizes known.

use super::attention::{ATTENTION_ROWS, SPLIT_CUBES};
use super::kernels::page_blocks::LARGEST;
use super::kernels::page_words::{BLOCK, PageWords};
use super::stage::{Stage, When};
use super::text::{KernelSpec, Kind};
use crate::plan::{Operand, Plan};
use crate::{BindOptions, Error, PAGE_TOKENS, Result};
use half::{bf16, f16};
use rayon::prelude::*;
use rusty_backend::{DeviceBuffer, GpuDevice, Owner, Pipeline, Target};
use rusty_graph::{KvLayer, WeightId};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Kernels that are compiled.
pub(super) type Pipelines = HashMap<KernelSpec, Pipeline>;

/// Refuses a plan whose kernels another kind of device runs.
pub(super) fn of_this_language(plan: &Plan, here: &Target) -> Result<()> {
    if plan.target.language == here.language {
        return Ok(());
    }
    Err(Error::Target {
        target: here.name.clone(),
        kernel: "all".into(),
        reason: format!("the plan was made for {}", plan.target.name),
    })
}

/// Weights that bodies read as vectors.
pub(super) fn vector_weights(plan: &Plan) -> Vec<WeightId> {
    let operands = plan.kernels.iter().flat_map(|k| &k.operands);
    let vectors = operands.filter_map(|o| match o {
        Operand::Vector(w) => Some(*w),
        _ => None,
    });
    vectors.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Compiles every kernel that is not `known`, in parallel, and gives those that are needed.
pub(super) fn compile<'a>(
    stages: impl IntoIterator<Item = &'a Stage>,
    target: &Target,
    device: &dyn GpuDevice,
    known: &Pipelines,
) -> Result<Pipelines> {
    let mut needed: HashSet<&KernelSpec> = HashSet::new();
    for stage in stages {
        for (_, _, templates) in stage.plain.iter().chain(&stage.adapted) {
            needed.extend(templates.iter().map(|t| &t.spec));
        }
    }
    let made = needed
        .into_par_iter()
        .map(|spec| {
            let pipeline = match known.get(spec) {
                Some(pipeline) => pipeline.clone(),
                None => device.pipeline(&spec.found_text(target)?)?,
            };
            Ok((spec.clone(), pipeline))
        })
        .collect::<Result<Pipelines>>()?;
    tracing::debug!(kernels = made.len(), "compiled");
    Ok(made)
}

/// Byte of the arena, behind what the plan has placed, where splits of attention leave their results.
pub(super) fn splits_at(plan: &Plan) -> u64 {
    plan.arena_bytes.next_multiple_of(256)
}

/// Byte of the arena, behind those, where adapters' intermediate lies.
pub(super) fn shrunk_at(plan: &Plan, split_words: u32) -> u64 {
    splits_at(plan) + (u64::from(split_words) * 4).next_multiple_of(256)
}

/// Bytes of the whole arena; adapters' intermediate has `ranks` per row and part.
pub(super) fn arena_bytes(plan: &Plan, split_words: u32, ranks: u32) -> u64 {
    let rows = plan.max_rows(rusty_graph::Dim::Sym(rusty_graph::SymId(0)));
    let parts = plan.kernels.iter().map(|k| match &k.anchor {
        crate::plan::Anchor::Contract { parts, .. } => parts.len() as u64,
        _ => 0,
    });
    let shrunk = u64::from(rows) * parts.max().unwrap_or(0) * u64::from(ranks) * 4;
    (shrunk_at(plan, split_words) + shrunk).max(256)
}

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

/// A page that holds these tokens' keys and values, rows of `width`, and zeros.
pub(super) fn page_words(keys: &[f32], values: &[f32], width: usize, kv: PageWords) -> Vec<u32> {
    let token = kv.token_words(width as u32) as usize;
    let mut words = Vec::with_capacity(2 * PAGE_TOKENS * token);
    for (half, rows) in [keys, values].into_iter().enumerate() {
        for row in rows.chunks_exact(width) {
            let start = words.len();
            match kv {
                PageWords::F32 => words.extend(row.iter().map(|v| v.to_bits())),
                PageWords::F16 => words.extend(pairs(row, |v| f16::from_f32(v).to_bits())),
                PageWords::Bf16 => words.extend(pairs(row, |v| bf16::from_f32(v).to_bits())),
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
    let mut lanes: [f32; BLOCK as usize] =
        std::array::from_fn(|i| block[i].clamp(-LARGEST, LARGEST));
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
    (0..plan.kv.len())
        .map(|layer| {
            let bytes = page_bytes(plan, layer, words) * u64::from(pages.max(1));
            if bytes > limit {
                return Err(Error::Target {
                    target: target.name.clone(),
                    kernel: format!("keys and values of layer {layer}"),
                    reason: format!(
                        "{pages} pages are {bytes} bytes; {limit} fit a binding: use a shorter context"
                    ),
                });
            }
            Ok(device.alloc(bytes, Owner::Kv, &format!("kv.{layer}"))?)
        })
        .collect()
}

/// Words that splits of attention take at most, and the single rows whose keys may be split: none where cubes do not see
/// what others leave.
pub(super) fn split_room(stages: &[Stage], target: &Target) -> (u32, u32) {
    if !target.orders_groups {
        return (0, 0);
    }
    let templates = stages.iter().flat_map(|s| &s.plain).flat_map(|p| &p.2);
    let configs = templates.filter_map(|t| match &t.spec.kind {
        Kind::RowAttention(config) => Some(config),
        _ => None,
    });
    let room = configs.map(|c| {
        (
            SPLIT_CUBES * c.partial_words(),
            SPLIT_CUBES / c.shape.cubes(),
        )
    });
    room.reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)))
        .unwrap_or((0, 0))
}

/// Query rows that every prefill attention kernel of a plan takes at once: many query heads per key/value head, or
/// little shared memory, leave room for fewer.
pub(super) fn tile_rows(stages: &[Stage]) -> u32 {
    let prefill = stages.iter().flat_map(|s| &s.plain);
    let prefill = prefill.filter(|(_, when, _)| *when == When::Decode(false));
    let rows = prefill
        .flat_map(|(_, _, templates)| templates)
        .filter_map(|t| match &t.spec.kind {
            Kind::Attention(config) => Some(config.rows),
            Kind::MatrixAttention(config) => Some(config.rows()),
            _ => None,
        });
    rows.min().unwrap_or(ATTENTION_ROWS)
}
