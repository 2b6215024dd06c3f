//! Pages of keys and values: their format and sizes, and pages made on the host.

use super::kernels::page_words::{BLOCK, PageWords};
use crate::plan::Plan;
use crate::{BindOptions, Error, PAGE_TOKENS, Result};
use half::{bf16, f16};
use rusty_graph::KvLayer;

/// Bytes of a page of so many heads.
pub(super) fn page_bytes(heads: &KvLayer, words: PageWords) -> u64 {
    let words = words.token_words(heads.key_lanes());
    u64::from(halves(heads)) * PAGE_TOKENS as u64 * u64::from(words) * 4
}

/// What a page of a layer holds: keys and values, or keys alone.
pub(super) fn halves(kv: &KvLayer) -> u32 {
    match kv.value_lanes() {
        0 => 1,
        _ => 2,
    }
}

/// A page of some heads that holds the keys and values of up to sixteen tokens from `first` on, and zeros. Rows are whole
/// prefixes' and have all of `count` times as many heads, of which the page's are the `piece`-th.
pub(super) fn page_words(
    (keys, values): (&[f32], &[f32]),
    first: usize,
    (heads, (piece, count)): (&KvLayer, (u32, u32)),
    kv: PageWords,
) -> Vec<u32> {
    let token = kv.token_words(heads.key_lanes()) as usize;
    let mut words = Vec::with_capacity(2 * PAGE_TOKENS * token);
    let all = [(keys, heads.key_lanes()), (values, heads.value_lanes())];
    for (half, (rows, width)) in all.iter().take(halves(heads) as usize).enumerate() {
        let (width, before) = (*width as usize, (piece * width) as usize);
        let rows = rows.chunks_exact(width * count as usize);
        let rows = rows.map(|row| &row[before..before + width]);
        for row in rows.skip(first).take(PAGE_TOKENS) {
            let end = words.len() + token;
            words.extend(token_words(row, kv));
            words.resize(end, 0);
        }
        words.resize((half + 1) * PAGE_TOKENS * token, 0);
    }
    words
}

/// One token's keys or values as they lie in a page.
fn token_words(row: &[f32], kv: PageWords) -> Vec<u32> {
    let row: Vec<f32> = row.iter().map(|v| kv.stored(*v)).collect();
    match kv {
        PageWords::F32 => row.iter().map(|v| v.to_bits()).collect(),
        PageWords::F16 => pairs(&row, |v| f16::from_f32(v).to_bits()).collect(),
        PageWords::Bf16 => pairs(&row, |v| bf16::from_f32(v).to_bits()).collect(),
        PageWords::Codes(bits) => {
            let blocks = row.chunks_exact(BLOCK as usize);
            blocks.flat_map(|b| codes(b, bits)).collect()
        }
    }
}

/// One token's keys or values out of their words in a page.
pub(super) fn token_lanes(words: &[u32], kv: PageWords) -> Vec<f32> {
    let halves = |word: &u32| [*word as u16, (word >> 16) as u16];
    match kv {
        PageWords::F32 => words.iter().map(|w| f32::from_bits(*w)).collect(),
        PageWords::F16 => {
            let bits = words.iter().flat_map(halves);
            bits.map(|b| f16::from_bits(b).to_f32()).collect()
        }
        PageWords::Bf16 => {
            let bits = words.iter().flat_map(halves);
            bits.map(|b| bf16::from_bits(b).to_f32()).collect()
        }
        PageWords::Codes(bits) => {
            let blocks = words.chunks_exact(bits as usize + 1);
            blocks.flat_map(|b| decoded(b, bits)).collect()
        }
    }
}

/// One token's keys or values as they are read back from a page.
pub(super) fn kept_lanes(row: &[f32], kv: PageWords) -> Vec<f32> {
    token_lanes(&token_words(row, kv), kv)
}

/// The lanes of a block of codes and its step.
fn decoded(block: &[u32], bits: u32) -> [f32; BLOCK as usize] {
    let (half, per_word) = ((1 << (bits - 1)) as f32, 32 / bits as usize);
    let step = f32::from_bits(block[bits as usize]);
    let shifted = |i: usize| block[i / per_word] >> (i % per_word * bits as usize);
    let code = |i: usize| shifted(i) & ((1 << bits) - 1);
    let mut lanes = std::array::from_fn(|i| (code(i) as f32 - half) * step);
    crate::rotation::rotate(&mut lanes);
    lanes
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read back is what was stored, but for rounding.
    #[test]
    fn tokens_are_read_back() {
        let row: Vec<f32> = (0..64)
            .map(|i| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0)
            .collect();
        for (kv, most) in [
            (PageWords::F32, 0.0),
            (PageWords::F16, 1e-3),
            (PageWords::Bf16, 1e-2),
            (PageWords::Codes(8), 0.05),
            (PageWords::Codes(4), 0.9),
        ] {
            let back = kept_lanes(&row, kv);
            assert_eq!(back.len(), row.len());
            let apart = row.iter().zip(&back).map(|(a, b)| (a - b).abs());
            let worst = apart.fold(0.0, f32::max);
            assert!(worst <= most, "{kv:?}: {worst}");
            // What was rounded is not rounded again.
            let again = kept_lanes(&back, kv);
            let apart = back.iter().zip(&again).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f32::max) < 1e-5, "{kv:?}");
        }
    }
}
