//! Where intermediates lie in the arena that the plan does not place, and how large it is.

use super::kernels::packed_inputs::PackedInputs;
use crate::plan::{Anchor, Plan};

/// Byte of the arena, behind what the plan has placed, where cubes leave what the last of them goes on with, as splits of attention do.
pub(super) fn splits_at(plan: &Plan) -> u64 {
    plan.arena_bytes.next_multiple_of(256)
}

/// Byte of the arena, behind those, where packed inputs lie.
pub(super) fn packed_at(plan: &Plan, split_words: u32) -> u64 {
    splits_at(plan) + (u64::from(split_words) * 4).next_multiple_of(256)
}

/// Byte of the arena, behind those, where adapters' intermediate lies.
pub(super) fn shrunk_at(plan: &Plan, split_words: u32) -> u64 {
    let rows = plan.row_budget() as u64;
    let words = contractions(plan).map(|(k, parts)| PackedInputs::most_words(k) * u64::from(parts));
    let packed = match plan.target.multiplies_bf16() {
        true => rows * words.max().unwrap_or(0) * 4,
        false => 0,
    };
    packed_at(plan, split_words) + packed.next_multiple_of(256)
}

/// Bytes of the whole arena; adapters' intermediate has `ranks` per row and part.
pub(super) fn arena_bytes(plan: &Plan, split_words: u32, ranks: u32) -> u64 {
    let rows = plan.row_budget() as u64;
    let parts = contractions(plan).map(|(_, parts)| u64::from(parts));
    let shrunk = rows * parts.max().unwrap_or(0) * u64::from(ranks) * 4;
    (shrunk_at(plan, split_words) + shrunk).max(256)
}

/// Input width and number of parts of each contraction.
fn contractions(plan: &Plan) -> impl Iterator<Item = (u32, u32)> {
    plan.kernels.iter().filter_map(|k| match &k.anchor {
        Anchor::Contract { k, parts } => Some((*k, parts.len() as u32)),
        _ => None,
    })
}
