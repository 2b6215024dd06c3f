//! [Attention of tiles of rows](super::attention) on matrix units (FlashAttention-2, arXiv 2307.08691): a cube takes 32 or 64
//! queries, rows by heads of a key/value head, and steps over the keys with the running softmax.
//!
//! Keys and values are multiplied as they are stored, in half precision or bf16; queries and the softmax's weights are
//! rounded to the same. What is stored in [blocks](super::matrix_attention_blocks) is multiplied in half precision. Keys lie in shared
//! memory as rows of lane pairs, values as rows of key pairs, in the same place one after the other. Pages in single precision, which
//! are asked for to round nothing, and heads that do not fit are for the kernel in single precision.

use super::attention_shape::{
    AttentionShape, KEYS, LOWEST, capped, cube_of_heads, first_key, locate, position_of, visible,
};
use super::contract::{UnitConfig, finish_pair};
use super::env::{Buffers, bound, header, put};
use super::fragments::{Halves, PLANE, exchange_words, packed};
use super::matrix_attention_blocks::{has_whole_blocks, turn_sums};
use super::matrix_attention_loads::{CubeMemory, load_keys, load_queries, load_values};
use super::matrix_product::{MatrixTile, PLANE_ROWS, Product, UNITS, keep_quarter, multiply};
use super::page_blocks::rotate_shared;
use super::page_words::{BLOCK, PageWords};
use cubecl::prelude::*;

/// Words that keep fragments of neighbouring rows in different banks.
const APART: u32 = 4;
/// Words from one query's weights, or one lane's values, to the next.
pub const KEY_STRIDE: u32 = KEYS / 2 + APART;

/// What the kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatrixAttentionConfig {
    /// Queries of a cube: 32 or 64.
    pub queries: u32,
    /// The attention.
    pub shape: AttentionShape,
    /// Scalar: arena word of the queries.
    pub arg: usize,
    /// Tails, over the one result.
    pub unit: UnitConfig,
    /// Whether the language has the instruction.
    pub native: bool,
}

impl MatrixAttentionConfig {
    /// Query rows of a tile.
    pub fn rows(&self) -> u32 {
        self.queries / self.shape.group()
    }

    /// Whether heads are cut into whole fragments, and what pages hold becomes 16-bit floats.
    pub fn is_whole(&self) -> bool {
        let across = UNITS / PLANE / (self.queries / PLANE_ROWS);
        let (keys, values) = (self.shape.head_dim, self.shape.value_dim);
        self.rows() > 0
            && keys.is_multiple_of(16)
            && values.is_multiple_of(8 * across)
            && match self.shape.kv {
                PageWords::F32 => false,
                PageWords::F16 | PageWords::Bf16 => true,
                PageWords::Codes(_) => keys.is_multiple_of(BLOCK) && values.is_multiple_of(BLOCK),
            }
    }

    /// What fragments hold.
    pub fn halves(&self) -> Halves {
        Halves {
            f16: self.shape.kv != PageWords::Bf16,
            native: self.native,
        }
    }

    /// Words from one query, or key, to the next.
    pub fn stride(&self) -> u32 {
        self.shape.head_dim / 2 + APART
    }

    /// Queries by keys.
    fn scores(&self) -> MatrixTile {
        MatrixTile {
            rows: self.queries,
            lanes: KEYS,
        }
    }

    /// Queries by lanes of values.
    fn result(&self) -> MatrixTile {
        MatrixTile {
            rows: self.queries,
            lanes: self.shape.value_dim,
        }
    }

    /// Words of keys, or values.
    pub fn pages_words(&self) -> usize {
        (KEYS * self.stride()).max(self.shape.value_dim * KEY_STRIDE) as usize
    }

    /// Words of what stands for matrix units.
    pub fn exchange_words(&self) -> usize {
        match self.native {
            true => 1,
            false => {
                let most = self.scores().fragments().max(self.result().fragments());
                exchange_words(UNITS, most)
            }
        }
    }

    /// Floats of a unit's sums.
    pub fn registers(&self) -> usize {
        self.result().fragments() * 8
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        let per_query = self.stride() + KEYS + 1 + KEY_STRIDE + 3;
        let rest = self.pages_words() + self.exchange_words();
        4 * (self.queries * per_query + 2 * KEYS + rest as u32)
    }
}

/// Cubes: `(tiles, key/value heads times shares)`.
#[cube(launch_unchecked)]
pub fn matrix_attention(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: MatrixAttentionConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let tile = buffers.step[header::TILES] + CUBE_POS_X * 2;
    let first = buffers.step[tile as usize];
    let rows = buffers.step[(tile + 1) as usize];
    let memory = CubeMemory::new(comptime!(config.clone()));
    if rows > 0 {
        attend(&buffers, &memory, first, rows, config);
    }
}

#[cube]
fn attend(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    first: u32,
    rows: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let shape = comptime!(config.shape);
    load_queries(buffers, memory, first, rows, comptime!(config.clone()));
    let mut sums = Array::<f32>::new(comptime!(config.result().fragments() * 8));
    let lowest = position_of(buffers, first);
    let end = position_of(buffers, first + rows - 1) + 1;
    let mut key = first_key(lowest, shape);
    let pages = buffers.step[(buffers.step[header::PAGES] + first) as usize];
    while key < end {
        locate(buffers, &memory.places, pages, key, end, shape, UNITS);
        sync_cube();
        load_keys(buffers, memory, comptime!(config.clone()));
        sync_cube();
        score(memory, lowest, rows, key, comptime!(config.clone()));
        sync_cube();
        soften(memory, comptime!(config.clone()));
        load_values(buffers, memory, comptime!(config.clone()));
        sync_cube();
        weigh(memory, &mut sums, comptime!(config.clone()));
        sync_cube();
        key += KEYS;
    }
    if comptime!(config.shape.kv.is_blocks() && has_whole_blocks(config.result())) {
        turn_sums(&mut sums, comptime!(config.result()));
    }
    store(buffers, memory, &sums, first, rows, config);
}

/// Scores of the step's keys; what a query may not see is [`LOWEST`].
#[cube]
fn score(
    memory: &CubeMemory,
    lowest: u32,
    rows: u32,
    key: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let tile = comptime!(config.scores());
    let fragments = comptime!(tile.fragments());
    let mut sums = Array::<f32>::new(comptime!(fragments * 8));
    #[unroll]
    for i in 0..comptime!(fragments * 8) {
        sums[i] = 0.0f32.runtime();
    }
    multiply(
        &memory.q,
        &memory.pages,
        &memory.exchange,
        &mut sums,
        comptime!(Product {
            tile,
            left: (0, config.stride()),
            right: (0, config.stride()),
            depth: config.shape.head_dim,
            at: 0,
            halves: config.halves(),
        }),
    );
    let plane = UNIT_POS / PLANE;
    let first = plane / tile.across() * PLANE_ROWS + UNIT_POS % PLANE / 4;
    let column = plane % tile.across() * tile.plane_lanes() + UNIT_POS % 4 * 2;
    #[unroll]
    for i in 0..comptime!(fragments * 8) {
        let (m, n) = comptime!((i / 4 / fragments, i / 4 % fragments));
        let (half, side) = comptime!((i % 4 / 2, i % 2));
        let query = first + comptime!((m * 16 + half * 8) as u32);
        let at = column + comptime!((n * 8 + side) as u32);
        let own = lowest + min(query / comptime!(config.shape.group()), rows - 1);
        let seen = visible(key + at, own, comptime!(config.shape));
        let value = select(seen, capped(sums[i], comptime!(config.shape)), LOWEST);
        put(&memory.scores, query * comptime!(KEYS + 1) + at, value);
    }
}

/// Scores become weights relative to the running maximum; neighbouring units share a query's keys.
#[cube]
fn soften(memory: &CubeMemory, #[comptime] config: MatrixAttentionConfig) {
    let sharing = comptime!(UNITS / config.queries);
    let own = comptime!(KEYS / sharing);
    let (query, part) = (UNIT_POS / sharing, UNIT_POS % sharing);
    let first = query * comptime!(KEYS + 1) + part * own;
    let before = memory.state[(query * 3) as usize];
    let mut highest = before;
    #[unroll]
    for i in 0..own {
        highest = max(highest, memory.scores[(first + i) as usize]);
    }
    #[unroll]
    for level in 0..comptime!(sharing.ilog2()) {
        highest = max(
            highest,
            plane_shuffle_xor(highest, comptime!(1u32 << level)),
        );
    }
    let mut sum = 0.0f32;
    #[unroll]
    for pair in 0..comptime!(own / 2) {
        let low = weight(memory.scores[(first + pair * 2) as usize], highest);
        let high = weight(memory.scores[(first + pair * 2 + 1) as usize], highest);
        sum += low + high;
        let to = query * KEY_STRIDE + part * comptime!(own / 2) + pair;
        let word = packed(low, high, comptime!(config.halves()));
        put(&memory.weights, to, word);
    }
    #[unroll]
    for level in 0..comptime!(sharing.ilog2()) {
        let other = plane_shuffle_xor(sum, comptime!(1u32 << level));
        sum += other;
    }
    if part == 0 {
        let factor = (before - highest).exp();
        let total = memory.state[(query * 3 + 1) as usize] * factor + sum;
        put(&memory.state, query * 3, highest);
        put(&memory.state, query * 3 + 1, total);
        put(&memory.state, query * 3 + 2, factor);
    }
}

/// What a score counts beside the highest.
#[cube]
fn weight(score: f32, highest: f32) -> f32 {
    select(score > LOWEST * 0.5, (score - highest).exp(), 0.0f32)
}

/// Adds the weighted values.
#[cube]
fn weigh(memory: &CubeMemory, sums: &mut Array<f32>, #[comptime] config: MatrixAttentionConfig) {
    let tile = comptime!(config.result());
    let fragments = comptime!(tile.fragments());
    let first = UNIT_POS / PLANE / tile.across() * PLANE_ROWS + UNIT_POS % PLANE / 4;
    #[unroll]
    for eight in 0..4usize {
        let (m, half) = comptime!((eight / 2, eight % 2));
        let query = first + comptime!((m * 16 + half * 8) as u32);
        let factor = memory.state[(query * 3 + 2) as usize];
        #[unroll]
        for i in 0..comptime!(fragments * 2) {
            sums[comptime!((m * fragments + i / 2) * 4 + half * 2 + i % 2)] *= factor;
        }
    }
    multiply(
        &memory.weights,
        &memory.pages,
        &memory.exchange,
        sums,
        comptime!(Product {
            tile,
            left: (0, KEY_STRIDE),
            right: (0, KEY_STRIDE),
            depth: KEYS,
            at: 0,
            halves: config.halves(),
        }),
    );
}

/// Stores what the tails make of the weighted values, a quarter of the queries at a time.
#[cube]
fn store(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &Array<f32>,
    first: u32,
    rows: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let dim = comptime!(config.shape.value_dim);
    let group = comptime!(config.shape.group());
    let end = comptime!(config.shape.heads * config.shape.value_dim).runtime();
    for q in 0..4u32 {
        keep_quarter(&memory.pages, sums, q, 1usize, comptime!(config.result()));
        sync_cube();
        // Blocks of which planes have parts are rotated back here.
        if comptime!(config.shape.kv.is_blocks() && !has_whole_blocks(config.result())) {
            let queries = comptime!(config.queries / 4);
            rotate_shared(&memory.pages, comptime!(dim / BLOCK), dim, queries, UNITS);
            sync_cube();
        }
        let mut task = UNIT_POS;
        while task < comptime!(config.queries / 4 * config.shape.value_dim / 2) {
            let (m, lane) = (task / comptime!(dim / 2), task % comptime!(dim / 2) * 2);
            let query = m / 8 * PLANE_ROWS + q * 8 + m % 8;
            if query / group < rows {
                let sum = memory.state[(query * 3 + 1) as usize];
                let mut products = Array::<f32>::new(2usize);
                #[unroll]
                for side in 0..2usize {
                    let at = m * dim + lane + side as u32;
                    products[side] = f32::reinterpret(memory.pages[at as usize]) / sum;
                }
                finish_pair(
                    buffers,
                    &products,
                    first + query / group,
                    (cube_of_heads(buffers, comptime!(config.shape)) * group + query % group) * dim
                        + lane,
                    end,
                    comptime!(config.unit.clone()),
                    1usize,
                    comptime!(None),
                );
            }
            task += UNITS;
        }
        sync_cube();
    }
}
