//! Attention of single rows of different sequences: decoding.
//!
//! A cube takes the query heads that share a key/value head, or a share of them, and one *split* of the row's keys
//! (flash-decoding, <https://pytorch.org/blog/flash-decoding>). Inside it each few units of a plane, a *lane group*, take keys of their
//! own, four at a time, and hold their part of the queries, of the running softmax (arXiv 2205.14135) and of the result in
//! registers; groups and planes meet only at the end. Splits meet in the arena: the cube that comes last adds them
//! up, so that no further launch is needed.
//!
//! Where the plan says so, a cube makes its queries itself, and the one that has the row's own position makes the row's
//! key and value too.

use super::attention::{AttentionShape, LOWEST, lanes_of, position_of};
use super::body::{Program, evaluate, safe_tanh};
use super::contract::{UnitConfig, finish_pair};
use super::env::{Buffers, bound, header, put};
use super::reduce::Team;
use super::rows::norm_factors;
use super::sink::{Store, store_pair};
use crate::PAGE_TOKENS;
use cubecl::prelude::*;

/// Keys of a lane group at a time; a run of them lies in one page.
const RUN: usize = 4;
/// Pairs of lanes of a unit, where a head has so many: more hide a load's latency, fewer leave registers.
const PAIRS: u32 = 4;

/// What a kernel for single rows is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowAttentionConfig {
    /// Units of a cube, whole planes.
    pub team: Team,
    /// The attention.
    pub shape: AttentionShape,
    /// Makes the queries.
    pub query: Program,
    /// Makes keys and values of the row, a head of each per cube.
    pub stores: Vec<Store>,
    /// Scalar: arena word where splits leave their results.
    pub splits: usize,
    /// Tails, over the one result.
    pub unit: UnitConfig,
}

impl RowAttentionConfig {
    /// Units of a lane group: the most of a plane that leave each whole pairs of lanes, [`PAIRS`] where there are.
    fn lane_units(&self) -> u32 {
        let (keys, values) = (self.shape.head_dim / 2, self.shape.value_dim / 2);
        let most = self.team.plane.min((keys / PAIRS).max(1));
        let fits = |units: &u32| keys.is_multiple_of(*units) && values.is_multiple_of(*units);
        let powers = (0..=most.ilog2()).rev().map(|p| 1 << p);
        powers.into_iter().find(fits).unwrap_or(1)
    }

    /// Pairs of key lanes of a unit.
    fn key_pairs(&self) -> usize {
        (self.shape.head_dim / 2 / self.lane_units()) as usize
    }

    /// Pairs of value lanes of a unit.
    fn value_pairs(&self) -> usize {
        (self.shape.value_dim / 2 / self.lane_units()) as usize
    }

    fn group(&self) -> usize {
        self.shape.group() as usize
    }

    fn planes(&self) -> u32 {
        self.team.units / self.team.plane
    }

    /// Keys of a cube at a time.
    fn stride(&self) -> u32 {
        self.team.units / self.lane_units() * RUN as u32
    }

    /// Words of a partial result: values of each query, then maximum and sum of each.
    pub fn partial_words(&self) -> u32 {
        self.shape.group() * (self.shape.value_dim + 2)
    }

    /// Floats that a unit holds at once, about: what limits the heads of a cube.
    pub fn registers(&self) -> usize {
        let of_head = 2 * (self.key_pairs() + self.value_pairs()) + RUN + 2;
        self.group() * of_head + 2 * RUN * self.key_pairs().max(self.value_pairs())
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        4 * (self.shape.group() * self.shape.head_dim + self.planes() * self.partial_words() + 1)
    }
}

/// Cubes: `(rows, key/value heads times shares, splits)`.
#[cube(launch_unchecked)]
pub fn row_attention(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    counters: &[Atomic<u32>],
    args: Sequence<u32>,
    #[comptime] config: RowAttentionConfig,
) {
    // Attention has no adapters.
    let buffers = bound(weights, arena, vectors, step, words, step, args);
    let tile = buffers.step[header::TILES] + CUBE_POS_X * 2;
    let row = buffers.step[tile as usize];
    if buffers.step[(tile + 1) as usize] > 0 {
        let stash = Shared::<[f32]>::new_slice(comptime!(
            (config.planes() * config.partial_words()) as usize
        ));
        attend(&buffers, &stash, row, comptime!(config.clone()));
        sync_cube();
        let own = CUBE_POS_X * CUBE_COUNT_Y + CUBE_POS_Y;
        if CUBE_COUNT_Z == 1 {
            finish(
                &buffers,
                &stash,
                0u32.runtime(),
                comptime!(config.planes()).runtime(),
                row,
                comptime!(config.clone()),
            );
        } else {
            let words = comptime!(config.partial_words());
            let first = buffers.args[comptime!(config.splits)] + own * CUBE_COUNT_Z * words;
            leave(
                &buffers,
                &stash,
                first + CUBE_POS_Z * words,
                comptime!(config.clone()),
            );
            let arrived = Shared::<[u32]>::new_slice(1usize);
            // What this cube left is visible before it says so, and what others left before it is told of them.
            sync_storage();
            if UNIT_POS == 0 {
                put(&arrived, 0u32, counters[own as usize].fetch_add(1u32));
            }
            sync_storage();
            if arrived[0] + 1 == CUBE_COUNT_Z {
                finish(
                    &buffers,
                    buffers.arena,
                    first,
                    CUBE_COUNT_Z,
                    row,
                    comptime!(config.clone()),
                );
                if UNIT_POS == 0 {
                    counters[own as usize].store(0u32);
                }
            }
        }
    }
}

/// One split of a row's keys: each plane's partial result into `stash`.
#[cube]
fn attend(
    buffers: &Buffers<'_>,
    stash: &Shared<[f32]>,
    row: u32,
    #[comptime] config: RowAttentionConfig,
) {
    let q = Shared::<[f32]>::new_slice(comptime!(config.group() * config.shape.head_dim as usize));
    let own = position_of(buffers, row);
    let end = own + 1;
    let start = match comptime!(config.shape.window) {
        Some(window) => end - min(window.runtime(), end),
        None => 0u32.runtime(),
    };
    let tokens = comptime!(PAGE_TOKENS as u32);
    let first = start - start % tokens;
    let share = (end - first).div_ceil(CUBE_COUNT_Z).div_ceil(tokens) * tokens;
    let from = min(first + CUBE_POS_Z * share, end);
    let to = min(from + share, end);
    if from < to && to == end {
        make_keys(buffers, row, comptime!(config.clone()));
    }
    make_queries(buffers, &q, row, comptime!(config.clone()));
    sync_storage();
    let mut state = Partial::new(comptime!(config.clone()));
    let queries = held_queries(&q, comptime!(config.clone()));
    let units = comptime!(config.lane_units());
    let mut base = from + UNIT_POS / units * RUN as u32;
    let mut left = (to - from).div_ceil(comptime!(config.stride()));
    // As many turns for every unit: planes exchange values inside.
    while left > 0 {
        turn(
            buffers,
            &mut state,
            &queries,
            row,
            base,
            start,
            to,
            comptime!(config.clone()),
        );
        base += comptime!(config.stride());
        left -= 1;
    }
    meet(&mut state, comptime!(config.clone()));
    state.stash(stash, config);
}

/// Keys and values of the row for this cube's head.
#[cube]
fn make_keys(buffers: &Buffers<'_>, row: u32, #[comptime] config: RowAttentionConfig) {
    let results = Sequence::<f32>::new();
    #[unroll]
    for s in 0..comptime!(config.stores.len()) {
        let size = comptime!(config.stores[s].program.segment);
        let first = CUBE_POS_Y / config.shape.shares * size;
        let factors = norm_factors(
            buffers,
            0u32,
            row,
            first,
            comptime!(config.stores[s].program.clone()),
            comptime!(config.team),
        );
        let mut lane = UNIT_POS * 2;
        while lane < size {
            store_pair(
                buffers,
                &results,
                &results,
                &factors,
                0u32,
                row,
                first + lane,
                first + size,
                comptime!(config.stores[s].clone()),
            );
            lane += comptime!(config.team.units * 2);
        }
    }
}

/// Scaled queries of the cube's heads into shared memory, `[head][lane]`.
#[cube]
fn make_queries(
    buffers: &Buffers<'_>,
    q: &Shared<[f32]>,
    row: u32,
    #[comptime] config: RowAttentionConfig,
) {
    let results = Sequence::<f32>::new();
    let dim = comptime!(config.shape.head_dim);
    let group = comptime!(config.shape.group());
    let last = comptime!(config.query.insts.len() - 1);
    for head in 0..group {
        let first = (CUBE_POS_Y * group + head) * dim;
        let factors = norm_factors(
            buffers,
            0u32,
            row,
            first,
            comptime!(config.query.clone()),
            comptime!(config.team),
        );
        let mut lane = UNIT_POS;
        while lane < dim {
            let value = evaluate(
                buffers,
                &results,
                &factors,
                0u32,
                row,
                first + lane,
                comptime!(config.query.clone()),
                last,
            );
            put(
                q,
                head * dim + lane,
                value * comptime!(config.shape.scale.get()),
            );
            lane += config.team.units;
        }
    }
}

/// The lanes of the queries that a unit multiplies with: `[head][pair][side]`. Pairs of a lane group lie side by side, so that its
/// units read neighbouring words.
#[cube]
fn held_queries(q: &Shared<[f32]>, #[comptime] config: RowAttentionConfig) -> Array<f32> {
    let units = comptime!(config.lane_units());
    let pairs = comptime!(config.key_pairs());
    let mut held = Array::<f32>::new(comptime!(config.group() * pairs * 2));
    #[unroll]
    for head in 0..comptime!(config.group()) {
        #[unroll]
        for i in 0..pairs {
            let lane = (UNIT_POS % units + comptime!(i as u32 * units)) * 2;
            let at = comptime!(head as u32 * config.shape.head_dim) + lane;
            held[comptime!((head * pairs + i) * 2)] = q[at as usize];
            held[comptime!((head * pairs + i) * 2 + 1)] = q[(at + 1) as usize];
        }
    }
    held
}

/// What a lane group has seen of its keys.
#[derive(CubeType)]
struct Partial {
    /// Largest score per head.
    highest: Array<f32>,
    /// Sum of the weights per head, relative to it.
    sum: Array<f32>,
    /// Weighted values, `[head][pair][side]`.
    values: Array<f32>,
}

#[cube]
impl Partial {
    fn new(#[comptime] config: RowAttentionConfig) -> Self {
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
    fn stash(&self, stash: &Shared<[f32]>, #[comptime] config: RowAttentionConfig) {
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
                    let lane = (inner + comptime!(i as u32 * units)) * 2;
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

/// A lane group's next keys, from `base`: those from `start` to before `to` count.
#[cube]
fn turn(
    buffers: &Buffers<'_>,
    state: &mut Partial,
    queries: &Array<f32>,
    row: u32,
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
    let list = buffers.step[(buffers.step[header::PAGES] + row) as usize];
    let page = buffers.step[(list + there / tokens) as usize];
    let head = CUBE_POS_Y / config.shape.shares
        * comptime!(config.shape.kv.token_words(config.shape.head_dim));
    let key = (page * halves * tokens + there % tokens) * words + head;
    let value =
        key + comptime!((config.shape.halves() - 1) * PAGE_TOKENS as u32 * config.shape.words());
    let mut weights = scores(buffers, queries, key, comptime!(config.clone()));
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
    weigh(buffers, state, &weights, &seen, value, config);
}

/// Scores of a run of keys that starts at word `key`, `[head][key]`, the same in all units of a lane group.
#[cube]
fn scores(
    buffers: &Buffers<'_>,
    queries: &Array<f32>,
    key: u32,
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
        let at = key + comptime!(k as u32 * config.shape.words());
        #[unroll]
        for i in 0..pairs {
            let pair = UNIT_POS % units + comptime!(i as u32 * units);
            let (low, high) = lanes_of(buffers.words, at, pair, comptime!(config.shape.kv));
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

/// Adds a run of values that starts at word `value` by their weights. What is not seen may be anything.
#[cube]
fn weigh(
    buffers: &Buffers<'_>,
    state: &mut Partial,
    weights: &Array<f32>,
    seen: &Array<bool>,
    value: u32,
    #[comptime] config: RowAttentionConfig,
) {
    let units = comptime!(config.lane_units());
    let pairs = comptime!(config.value_pairs());
    #[unroll]
    for k in 0..RUN {
        let at = value + comptime!(k as u32 * config.shape.words());
        #[unroll]
        for i in 0..pairs {
            let pair = UNIT_POS % units + comptime!(i as u32 * units);
            let (a, b) = lanes_of(buffers.words, at, pair, comptime!(config.shape.kv));
            let low = select(seen[k], a, 0.0f32);
            let high = select(seen[k], b, 0.0f32);
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
fn meet(state: &mut Partial, #[comptime] config: RowAttentionConfig) {
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
fn leave(
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
fn finish(
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
        finish_pair(
            buffers,
            &products,
            row,
            CUBE_POS_Y * group * dim + lane,
            end,
            comptime!(config.unit.clone()),
            1usize,
            comptime!(None),
        );
        lane += config.team.units * 2;
    }
}
