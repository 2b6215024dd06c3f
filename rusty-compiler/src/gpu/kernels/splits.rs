//! Partial results of [attention of rows alone](super::row_attention): of planes in shared memory, of splits in the arena.

use super::attention_shape::cube_of_heads;
use super::contract::store_unit;
use super::env::{Buffers, put};
use super::row_attention::RowAttentionConfig;
use cubecl::prelude::*;

/// Maximum over `count` partial results of a head from word `first` of `from`.
#[cube]
fn highest_of(
    from: &[f32],
    first: u32,
    count: u32,
    head: u32,
    #[comptime] config: RowAttentionConfig,
) -> f32 {
    let state = first + comptime!(config.shape.group() * config.shape.value_dim) + head * 2;
    let mut highest = from[state as usize];
    for part in 1..count {
        let at = state + part * comptime!(config.partial_words());
        highest = max(highest, from[at as usize]);
    }
    highest
}

/// The planes' partial results as the split's own, in the arena from word `to`.
#[cube]
pub fn leave(
    buffers: &Buffers<'_>,
    stash: &Shared<[f32]>,
    to: u32,
    #[comptime] config: RowAttentionConfig,
) {
    let dim = comptime!(config.shape.value_dim);
    let words = comptime!(config.partial_words());
    let planes = comptime!(config.planes());
    let state = comptime!(config.shape.group() * config.shape.value_dim);
    let mut at = UNIT_POS;
    while at < words {
        let of_state = at >= state;
        let head = select(of_state, (at - min(at, state.runtime())) / 2, at / dim);
        let highest = highest_of(
            stash,
            0u32.runtime(),
            planes.runtime(),
            head,
            comptime!(config.clone()),
        );
        let mut value = 0.0f32;
        for plane in 0..planes {
            let own = stash[(plane * words + state + head * 2) as usize];
            value += stash[(plane * words + at) as usize] * (own - highest).exp();
        }
        let is_highest = of_state && (at - min(at, state.runtime())).is_multiple_of(2);
        put(buffers.arena, to + at, select(is_highest, highest, value));
        at += config.team.units;
    }
}

/// Adds `count` partial results from word `first` of `from` and stores what the tails make of them.
#[cube]
pub fn finish(
    buffers: &Buffers<'_>,
    from: &[f32],
    first: u32,
    count: u32,
    row: u32,
    #[comptime] config: RowAttentionConfig,
) {
    let dim = comptime!(config.shape.value_dim);
    let words = comptime!(config.partial_words());
    let group = comptime!(config.shape.group());
    let state = comptime!(config.shape.group() * config.shape.value_dim);
    let end = comptime!(config.shape.heads * config.shape.value_dim).runtime();
    let mut lane = UNIT_POS * 2;
    while lane < state {
        let head = lane / dim;
        let highest = highest_of(from, first, count, head, comptime!(config.clone()));
        let mut products = Array::<f32>::new(2usize);
        let mut low = 0.0f32;
        let mut high = 0.0f32;
        let mut sum = 0.0f32;
        for part in 0..count {
            let at = first + part * words;
            let of_state = at + state + head * 2;
            let factor = (from[of_state as usize] - highest).exp();
            sum += from[(of_state + 1) as usize] * factor;
            low += from[(at + lane) as usize] * factor;
            high += from[(at + lane + 1) as usize] * factor;
        }
        products[0] = low / sum;
        products[1] = high / sum;
        store_unit(
            buffers,
            &products,
            row,
            cube_of_heads(buffers, comptime!(config.shape)) * group * dim + lane,
            end,
            comptime!(config.unit.clone()),
            1usize,
        );
        lane += config.team.units * 2;
    }
}
