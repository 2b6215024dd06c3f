//! The running softmax (arXiv 2205.14135) of a lane group of [attention of rows alone](super::row_attention), in registers.

use super::attention_shape::{LOWEST, halves_of, lanes_of};
use super::elementwise::safe_tanh;
use super::env::{Buffers, put};
use super::row_attention::{RowAttentionConfig, pair_of_unit};
use super::word_loads::read_words;
use crate::PAGE_TOKENS;
use crate::plan::held_lanes::RUN;
use cubecl::prelude::*;

/// What a lane group has seen of its keys.
#[derive(CubeType)]
pub struct Partial {
    /// Largest score per head.
    pub highest: Array<f32>,
    /// Sum of the weights per head, relative to it.
    pub sum: Array<f32>,
    /// Weighted values, `[head][pair][side]`.
    pub values: Array<f32>,
}

#[cube]
impl Partial {
    /// Nothing seen yet.
    pub fn new(#[comptime] config: RowAttentionConfig) -> Self {
        let group = comptime!(config.group());
        let count = comptime!(group * config.value_pairs() * 2);
        let mut highest = Array::<f32>::new(group);
        let mut sum = Array::<f32>::new(group);
        let mut values = Array::<f32>::new(count);
        #[unroll]
        for head in 0..group {
            highest[head] = LOWEST.runtime();
            sum[head] = 0.0f32.runtime();
        }
        #[unroll]
        for i in 0..count {
            values[i] = 0.0f32.runtime();
        }
        Partial {
            highest,
            sum,
            values,
        }
    }

    /// A plane's part into shared memory, by its first lane group.
    pub fn stash(&self, stash: &Shared<[f32]>, #[comptime] config: RowAttentionConfig) {
        let units = comptime!(config.lane_units());
        let pairs = comptime!(config.value_pairs());
        let dim = comptime!(config.shape.value_dim);
        let inner = UNIT_POS % config.team.plane;
        if inner < units {
            let first = UNIT_POS / config.team.plane * comptime!(config.partial_words());
            #[unroll]
            for head in 0..comptime!(config.group()) {
                #[unroll]
                for i in 0..pairs {
                    let lane = pair_of_unit(i, pairs, comptime!(config.clone())) * 2;
                    let at = first + comptime!(head as u32 * dim) + lane;
                    put(stash, at, self.values[comptime!((head * pairs + i) * 2)]);
                    put(
                        stash,
                        at + 1,
                        self.values[comptime!((head * pairs + i) * 2 + 1)],
                    );
                }
                if inner == 0 {
                    let at = first + comptime!(config.shape.group() * dim + head as u32 * 2);
                    put(stash, at, self.highest[head]);
                    put(stash, at + 1, self.sum[head]);
                }
            }
        }
    }
}

/// A lane group's next keys, from `base`: those from `start` to before `to` count. The row's list of pages starts at word `pages`.
#[cube]
pub fn turn(
    buffers: &Buffers<'_>,
    state: &mut Partial,
    queries: &Array<f32>,
    pages: u32,
    base: u32,
    start: u32,
    to: u32,
    #[comptime] config: RowAttentionConfig,
) {
    let tokens = comptime!(PAGE_TOKENS as u32);
    let words = comptime!(config.shape.words());
    let halves = comptime!(config.shape.halves());
    // A group behind the end reads the last keys again.
    let last = to - 1;
    let there = min(base, last - last % RUN as u32);
    let page = buffers.step[(pages + there / tokens) as usize];
    let head = CUBE_POS_Y / config.shape.shares
        * comptime!(config.shape.kv.token_words(config.shape.head_dim));
    let key = (page * halves * tokens + there % tokens) * words + head;
    let value =
        key + comptime!((config.shape.halves() - 1) * PAGE_TOKENS as u32 * config.shape.words());
    let ahead = comptime!(config.reads_ahead());
    let keys = lanes_of_run(
        buffers,
        key,
        comptime!(config.key_pairs()),
        comptime!(config.clone()),
    );
    let mut values = Sequence::<Array<f32>>::new();
    if comptime!(ahead) {
        values.push(lanes_of_run(
            buffers,
            value,
            comptime!(config.value_pairs()),
            comptime!(config.clone()),
        ));
    }
    let mut weights = scores(queries, &keys, comptime!(config.clone()));
    let mut seen = Array::<bool>::new(RUN);
    #[unroll]
    for k in 0..RUN {
        let position = base + k as u32;
        seen[k] = position >= start && position < to;
    }
    #[unroll]
    for h in 0..comptime!(config.group()) {
        let before = state.highest[h];
        let mut highest = before;
        #[unroll]
        for k in 0..RUN {
            highest = max(
                highest,
                select(seen[k], weights[comptime!(h * RUN + k)], LOWEST),
            );
        }
        let mut sum = 0.0f32;
        #[unroll]
        for k in 0..RUN {
            let at = comptime!(h * RUN + k);
            let weight = select(seen[k], (weights[at] - highest).exp(), 0.0f32);
            weights[at] = weight;
            sum += weight;
        }
        let factor = (before - highest).exp();
        state.highest[h] = highest;
        state.sum[h] = state.sum[h] * factor + sum;
        #[unroll]
        for i in 0..comptime!(config.value_pairs() * 2) {
            state.values[comptime!(h * config.value_pairs() * 2 + i)] *= factor;
        }
    }
    if comptime!(!ahead) {
        values.push(lanes_of_run(
            buffers,
            value,
            comptime!(config.value_pairs()),
            comptime!(config.clone()),
        ));
    }
    weigh(state, &weights, &seen, &values[0], config);
}

/// The unit's lanes of a run of keys, or values, that starts at word `first`: `[key][pair][side]`.
#[cube]
fn lanes_of_run(
    buffers: &Buffers<'_>,
    first: u32,
    #[comptime] pairs: usize,
    #[comptime] config: RowAttentionConfig,
) -> Array<f32> {
    let mut lanes = Array::<f32>::new(comptime!(RUN * pairs * 2));
    let words = comptime!(config.shape.words());
    if comptime!(config.wide) {
        // All are asked for before the first is needed.
        let mut read = Array::<u32>::new(comptime!(RUN * pairs));
        let own = first + pair_of_unit(0usize, pairs, comptime!(config.clone()));
        #[unroll]
        for k in 0..RUN {
            let at = own + comptime!(k as u32 * words);
            read_words(buffers.words, at, &mut read, comptime!(k * pairs), pairs);
        }
        #[unroll]
        for i in 0..comptime!(RUN * pairs) {
            let (low, high) = halves_of(read[i], comptime!(config.shape.kv));
            lanes[comptime!(i * 2)] = low;
            lanes[comptime!(i * 2 + 1)] = high;
        }
    } else {
        #[unroll]
        for k in 0..RUN {
            let at = first + comptime!(k as u32 * words);
            #[unroll]
            for i in 0..pairs {
                let pair = pair_of_unit(i, pairs, comptime!(config.clone()));
                let (low, high) = lanes_of(buffers.words, at, pair, comptime!(config.shape.kv));
                lanes[comptime!((k * pairs + i) * 2)] = low;
                lanes[comptime!((k * pairs + i) * 2 + 1)] = high;
            }
        }
    }
    lanes
}

/// Scores of a run of keys, `[head][key]`, the same in all units of a lane group.
#[cube]
fn scores(
    queries: &Array<f32>,
    keys: &Array<f32>,
    #[comptime] config: RowAttentionConfig,
) -> Array<f32> {
    let units = comptime!(config.lane_units());
    let pairs = comptime!(config.key_pairs());
    let count = comptime!(config.group() * RUN);
    let mut sums = Array::<f32>::new(count);
    #[unroll]
    for i in 0..count {
        sums[i] = 0.0f32.runtime();
    }
    #[unroll]
    for k in 0..RUN {
        #[unroll]
        for i in 0..pairs {
            let low = keys[comptime!((k * pairs + i) * 2)];
            let high = keys[comptime!((k * pairs + i) * 2 + 1)];
            #[unroll]
            for h in 0..comptime!(config.group()) {
                sums[comptime!(h * RUN + k)] += low * queries[comptime!((h * pairs + i) * 2)]
                    + high * queries[comptime!((h * pairs + i) * 2 + 1)];
            }
        }
    }
    #[unroll]
    for level in 0..comptime!(units.ilog2()) {
        #[unroll]
        for i in 0..count {
            let other = plane_shuffle_xor(sums[i], comptime!(1u32 << level));
            sums[i] += other;
        }
    }
    if let Some(cap) = comptime!(config.shape.softcap) {
        #[unroll]
        for i in 0..count {
            sums[i] = comptime!(cap.get()) * safe_tanh(sums[i] / comptime!(cap.get()));
        }
    }
    sums
}

/// Adds a run of values by their weights. What is not seen may be anything.
#[cube]
fn weigh(
    state: &mut Partial,
    weights: &Array<f32>,
    seen: &Array<bool>,
    values: &Array<f32>,
    #[comptime] config: RowAttentionConfig,
) {
    let pairs = comptime!(config.value_pairs());
    #[unroll]
    for k in 0..RUN {
        #[unroll]
        for i in 0..pairs {
            let low = select(seen[k], values[comptime!((k * pairs + i) * 2)], 0.0f32);
            let high = select(seen[k], values[comptime!((k * pairs + i) * 2 + 1)], 0.0f32);
            #[unroll]
            for h in 0..comptime!(config.group()) {
                let weight = weights[comptime!(h * RUN + k)];
                state.values[comptime!((h * pairs + i) * 2)] += weight * low;
                state.values[comptime!((h * pairs + i) * 2 + 1)] += weight * high;
            }
        }
    }
}

/// Lane groups of a plane add up what they have: afterwards all hold the same.
#[cube]
pub fn meet(state: &mut Partial, #[comptime] config: RowAttentionConfig) {
    let units = comptime!(config.lane_units());
    let lanes = comptime!(config.value_pairs() * 2);
    #[unroll]
    for level in comptime!(units.ilog2())..comptime!(config.team.plane.ilog2()) {
        let mask = comptime!(1u32 << level);
        #[unroll]
        for h in 0..comptime!(config.group()) {
            let own = state.highest[h];
            let highest = max(own, plane_shuffle_xor(own, mask));
            let factor = (own - highest).exp();
            let sum = state.sum[h] * factor;
            state.highest[h] = highest;
            state.sum[h] = sum + plane_shuffle_xor(sum, mask);
            #[unroll]
            for i in 0..lanes {
                let value = state.values[comptime!(h * lanes + i)] * factor;
                state.values[comptime!(h * lanes + i)] = value + plane_shuffle_xor(value, mask);
            }
        }
    }
}
