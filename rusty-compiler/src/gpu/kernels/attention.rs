//! Flash attention over KV pages: online softmax (arXiv 2205.14135) with grouped queries (arXiv 2305.13245).
//!
//! A cube takes one key/value head for a tile of rows of one sequence, so that every key and value it reads
//! serves all of the group's query heads (or the share of them that fits) and all rows of the tile. Rows alone have a kernel
//! of their own where there are planes, [`row_attention`](super::row_attention); elsewhere they are tiles of one. Values may be the first lanes of the keys (arXiv 2405.04434).

use super::attention_shape::{
    AttentionShape, KEYS, LOWEST, capped, cube_of_heads, first_key, lanes_of, locate, position_of,
    visible,
};
use super::contract::{UnitConfig, store_unit};
use super::env::{Buffers, bound, header, put};
use super::page_blocks::rotate_shared;
use super::page_words::BLOCK;
use cubecl::prelude::*;

/// What an attention kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionConfig {
    /// Units of a cube.
    pub units: u32,
    /// Query rows of a tile.
    pub rows: u32,
    /// The attention.
    pub shape: AttentionShape,
    /// Scalar: arena word of the queries.
    pub arg: usize,
    /// Tails, over the one result.
    pub unit: UnitConfig,
}

impl AttentionConfig {
    fn group(&self) -> u32 {
        self.shape.group()
    }

    /// Queries of a cube: rows by heads of the group.
    pub fn queries(&self) -> u32 {
        self.rows * self.group()
    }

    /// Pairs of output lanes of a unit.
    fn pairs(&self) -> u32 {
        (self.queries() * self.shape.value_dim / 2).div_ceil(self.units)
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        4 * (self.queries() * (self.shape.head_dim + KEYS + 3) + 2 * KEYS)
    }
}

/// Cubes: `(tiles, key/value heads times shares)`.
#[cube(launch_unchecked)]
pub fn attention(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: AttentionConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let tile = buffers.step[header::TILES] + CUBE_POS_X * 2;
    let first = buffers.step[tile as usize];
    let rows = buffers.step[(tile + 1) as usize];
    if rows > 0 {
        attend(&buffers, first, rows, config);
    }
}

#[cube]
fn attend(buffers: &Buffers<'_>, first: u32, rows: u32, #[comptime] config: AttentionConfig) {
    let queries = comptime!(config.queries());
    let dim = comptime!(config.shape.head_dim);
    let q = Shared::<[f32]>::new_slice(comptime!((queries * dim) as usize));
    let scores = Shared::<[f32]>::new_slice(comptime!((queries * KEYS) as usize));
    // Running maximum, running sum and the factor on what was summed before, per query.
    let state = Shared::<[f32]>::new_slice(comptime!((queries * 3) as usize));
    // Where each key and each value of the step starts.
    let places = Shared::<[u32]>::new_slice(comptime!((KEYS * 2) as usize));
    load_queries(buffers, &q, &state, first, rows, comptime!(config.clone()));
    turn_queries(&q, comptime!(config.clone()));
    let mut sums = Array::<f32>::new(comptime!((config.pairs() * 2) as usize));
    let lowest = position_of(buffers, first);
    let end = position_of(buffers, first + rows - 1) + 1;
    let mut key = first_key(lowest, comptime!(config.shape));
    let pages = buffers.step[(buffers.step[header::PAGES] + first) as usize];
    while key < end {
        locate(
            buffers,
            &places,
            pages,
            key,
            end,
            comptime!(config.shape),
            comptime!(config.units),
        );
        sync_cube();
        score(
            buffers,
            &q,
            &scores,
            &places,
            lowest,
            rows,
            key,
            comptime!(config.clone()),
        );
        sync_cube();
        soften(&scores, &state, comptime!(config.clone()));
        sync_cube();
        gather(
            buffers,
            &mut sums,
            &scores,
            &state,
            &places,
            key,
            end,
            comptime!(config.clone()),
        );
        sync_cube();
        key += KEYS;
    }
    if comptime!(config.shape.kv.is_blocks()) {
        turn_back(&mut sums, &q, comptime!(config.clone()));
    }
    store(buffers, &sums, &state, first, rows, config);
}

/// Turns queries as keys are turned that lie in blocks.
#[cube]
fn turn_queries(q: &Shared<[f32]>, #[comptime] config: AttentionConfig) {
    if comptime!(config.shape.kv.is_blocks()) {
        let dim = comptime!(config.shape.head_dim);
        sync_cube();
        rotate_shared(
            q,
            comptime!(dim / BLOCK),
            dim,
            comptime!(config.queries()),
            comptime!(config.units),
        );
    }
}

/// Scaled queries into shared memory, `[query][lane]`; query `m * group + h` is head `h` of row `m`.
#[cube]
fn load_queries(
    buffers: &Buffers<'_>,
    q: &Shared<[f32]>,
    state: &Shared<[f32]>,
    first: u32,
    rows: u32,
    #[comptime] config: AttentionConfig,
) {
    let dim = comptime!(config.shape.head_dim);
    let group = comptime!(config.group());
    let mut at = UNIT_POS;
    while at < comptime!(config.queries() * config.shape.head_dim) {
        let query = at / dim;
        let m = query / group;
        let head = cube_of_heads(buffers, comptime!(config.shape)) * group + query % group;
        let row = first + min(m, rows - 1);
        let from = buffers.args[comptime!(config.arg)]
            + row * comptime!(config.shape.heads * config.shape.head_dim)
            + head * dim
            + at % dim;
        put(
            q,
            at,
            buffers.arena[from as usize] * comptime!(config.shape.scale.get()),
        );
        at += config.units;
    }
    let mut query = UNIT_POS;
    while query < comptime!(config.queries()) {
        put(state, query * 3, LOWEST.runtime());
        put(state, query * 3 + 1, 0.0f32.runtime());
        query += config.units;
    }
}

/// `scores[query][key]`; what a query may not see is [`LOWEST`].
#[cube]
fn score(
    buffers: &Buffers<'_>,
    q: &Shared<[f32]>,
    scores: &Shared<[f32]>,
    places: &Shared<[u32]>,
    lowest: u32,
    rows: u32,
    key: u32,
    #[comptime] config: AttentionConfig,
) {
    let dim = comptime!(config.shape.head_dim);
    let mut task = UNIT_POS;
    while task < comptime!(config.queries() * KEYS) {
        let query = task / KEYS;
        let own = lowest + min(query / comptime!(config.group()), rows - 1);
        let mut value = LOWEST.runtime();
        if visible(key + task % KEYS, own, comptime!(config.shape)) {
            let place = places[((task % KEYS) * 2) as usize];
            let mut sum = 0.0f32;
            for pair in 0..comptime!(dim / 2) {
                let (low, high) = lanes_of(buffers.words, place, pair, comptime!(config.shape.kv));
                let lane = query * dim + pair * 2;
                sum += low * q[lane as usize] + high * q[(lane + 1) as usize];
            }
            value = capped(sum, comptime!(config.shape));
        }
        put(scores, task, value);
        task += config.units;
    }
}

/// Scores become weights relative to the running maximum.
#[cube]
fn soften(scores: &Shared<[f32]>, state: &Shared<[f32]>, #[comptime] config: AttentionConfig) {
    let mut query = UNIT_POS;
    while query < comptime!(config.queries()) {
        let before = state[(query * 3) as usize];
        let mut highest = before;
        for i in 0..KEYS {
            highest = max(highest, scores[(query * KEYS + i) as usize]);
        }
        let factor = (before - highest).exp();
        let mut sum = state[(query * 3 + 1) as usize] * factor;
        for i in 0..KEYS {
            let at = query * KEYS + i;
            let value = scores[at as usize];
            let weight = select(value > LOWEST * 0.5, (value - highest).exp(), 0.0f32);
            put(scores, at, weight);
            sum += weight;
        }
        put(state, query * 3, highest);
        put(state, query * 3 + 1, sum);
        put(state, query * 3 + 2, factor);
        query += config.units;
    }
}

/// Adds the weighted values; unit `u` holds the pairs `u`, `u + units`, ... of `[query][lane / 2]`.
#[cube]
fn gather(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    scores: &Shared<[f32]>,
    state: &Shared<[f32]>,
    places: &Shared<[u32]>,
    key: u32,
    end: u32,
    #[comptime] config: AttentionConfig,
) {
    let half = comptime!(config.shape.value_dim / 2);
    let keys = min(end - key, KEYS.runtime());
    #[unroll]
    for i in 0..comptime!(config.pairs()) {
        let task = UNIT_POS + comptime!(i * config.units);
        let query = min(task / half, comptime!(config.queries() - 1).runtime());
        let factor = state[(query * 3 + 2) as usize];
        let mut low = sums[comptime!(i as usize * 2)] * factor;
        let mut high = sums[comptime!(i as usize * 2 + 1)] * factor;
        for j in 0..keys {
            let weight = scores[(query * KEYS + j) as usize];
            let place = places[(j * 2 + 1) as usize];
            let (a, b) = lanes_of(
                buffers.words,
                place,
                task % half,
                comptime!(config.shape.kv),
            );
            low += weight * a;
            high += weight * b;
        }
        sums[comptime!(i as usize * 2)] = low;
        sums[comptime!(i as usize * 2 + 1)] = high;
    }
}

/// Sums of rotated values become those of plain ones, by way of the queries' memory.
#[cube]
fn turn_back(sums: &mut Array<f32>, q: &Shared<[f32]>, #[comptime] config: AttentionConfig) {
    let dim = comptime!(config.shape.value_dim);
    let queries = comptime!(config.queries());
    #[unroll]
    for i in 0..comptime!(config.pairs()) {
        let task = UNIT_POS + comptime!(i * config.units);
        if task < comptime!(queries * dim / 2) {
            put(q, task * 2, sums[comptime!(i as usize * 2)]);
            put(q, task * 2 + 1, sums[comptime!(i as usize * 2 + 1)]);
        }
    }
    sync_cube();
    rotate_shared(
        q,
        comptime!(dim / BLOCK),
        dim,
        queries,
        comptime!(config.units),
    );
    sync_cube();
    #[unroll]
    for i in 0..comptime!(config.pairs()) {
        let task = UNIT_POS + comptime!(i * config.units);
        if task < comptime!(queries * dim / 2) {
            sums[comptime!(i as usize * 2)] = q[(task * 2) as usize];
            sums[comptime!(i as usize * 2 + 1)] = q[(task * 2 + 1) as usize];
        }
    }
}

#[cube]
fn store(
    buffers: &Buffers<'_>,
    sums: &Array<f32>,
    state: &Shared<[f32]>,
    first: u32,
    rows: u32,
    #[comptime] config: AttentionConfig,
) {
    let half = comptime!(config.shape.value_dim / 2);
    let group = comptime!(config.group());
    let end = comptime!(config.shape.heads * config.shape.value_dim).runtime();
    #[unroll]
    for i in 0..comptime!(config.pairs()) {
        let task = UNIT_POS + comptime!(i * config.units);
        let query = task / half;
        if task < comptime!(config.queries()) * half && query / group < rows {
            let sum = state[(query * 3 + 1) as usize];
            let mut products = Array::<f32>::new(2usize);
            products[0] = sums[comptime!(i as usize * 2)] / sum;
            products[1] = sums[comptime!(i as usize * 2 + 1)] / sum;
            let head = cube_of_heads(buffers, comptime!(config.shape)) * group + query % group;
            let lane = head * config.shape.value_dim + (task % half) * 2;
            store_unit(
                buffers,
                &products,
                first + query / group,
                lane,
                end,
                comptime!(config.unit.clone()),
                1usize,
            );
        }
    }
}
