//! Where intermediates lie in the arena that the plan does not place, and how large it is.

use crate::plan::{Anchor, Plan};

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
    let rows = plan.row_budget() as u64;
    let parts = plan.kernels.iter().map(|k| match &k.anchor {
        Anchor::Contract { parts, .. } => parts.len() as u64,
        _ => 0,
    });
    let shrunk = rows * parts.max().unwrap_or(0) * u64::from(ranks) * 4;
    (shrunk_at(plan, split_words) + shrunk).max(256)
}
