//! What [attention on matrix units](super::matrix_attention) holds in shared memory, and how queries, keys and values come there.

use super::attention_shape::{KEYS, LOWEST, cube_of_heads};
use super::env::{Buffers, put};
use super::fragments::{ALIGNMENT, PLANE, packed_finite};
use super::matrix_attention::{KEY_STRIDE, MatrixAttentionConfig};
use super::matrix_attention_blocks::{load_coded_keys, load_coded_values, load_rotated_queries};
use super::matrix_product::UNITS;
use super::page_words::PageWords;
use cubecl::prelude::*;

/// Shared memory of a cube.
#[derive(CubeType)]
pub struct CubeMemory {
    /// Scaled queries, `[query][pair]`.
    pub q: Shared<[u32]>,
    /// Keys, `[key][pair]`, then values, `[lane][pair of keys]`, then the result.
    pub pages: Shared<[u32]>,
    /// Scores, `[query][key]`.
    pub scores: Shared<[f32]>,
    /// Weights of the softmax, `[query][pair of keys]`.
    pub weights: Shared<[u32]>,
    /// Running maximum, running sum and the factor on what was summed before, per query.
    pub state: Shared<[f32]>,
    /// Where each key and each value of the step starts.
    pub places: Shared<[u32]>,
    /// What stands for matrix units exchanges.
    pub exchange: Shared<[u32]>,
}

#[cube]
impl CubeMemory {
    /// Memory for a configuration.
    pub fn new(#[comptime] config: MatrixAttentionConfig) -> Self {
        let queries = comptime!(config.queries as usize);
        CubeMemory {
            q: Shared::<[u32]>::new_aligned_slice(
                comptime!(queries * config.stride() as usize),
                ALIGNMENT,
            ),
            pages: Shared::<[u32]>::new_aligned_slice(comptime!(config.pages_words()), ALIGNMENT),
            scores: Shared::<[f32]>::new_slice(comptime!(queries * (KEYS as usize + 1))),
            weights: Shared::<[u32]>::new_aligned_slice(
                comptime!(queries * KEY_STRIDE as usize),
                ALIGNMENT,
            ),
            state: Shared::<[f32]>::new_slice(comptime!(queries * 3)),
            places: Shared::<[u32]>::new_slice(comptime!(KEYS as usize * 2)),
            exchange: Shared::<[u32]>::new_slice(comptime!(config.exchange_words())),
        }
    }
}

/// Scaled queries, rotated where keys are; query `m * group + h` is head `h` of row `m`, those behind the last repeat it.
#[cube]
pub fn load_queries(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    first: u32,
    rows: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    if comptime!(config.shape.kv.is_blocks()) {
        load_rotated_queries(buffers, memory, first, rows, comptime!(config.clone()));
    } else {
        load_plain_queries(buffers, memory, first, rows, comptime!(config.clone()));
    }
    let mut query = UNIT_POS;
    while query < config.queries {
        put(&memory.state, query * 3, LOWEST.runtime());
        put(&memory.state, query * 3 + 1, 0.0f32.runtime());
        query += UNITS;
    }
}

#[cube]
fn load_plain_queries(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    first: u32,
    rows: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let pairs = comptime!(config.shape.head_dim / 2);
    let scale = comptime!(config.shape.scale.get());
    let mut at = UNIT_POS;
    while at < comptime!(config.queries * config.shape.head_dim / 2) {
        let (query, pair) = (at / pairs, at % pairs);
        let start = query_start(buffers, query, first, rows, comptime!(config.clone()));
        let from = start + pair * 2;
        let low = buffers.arena[from as usize] * scale;
        let high = buffers.arena[(from + 1) as usize] * scale;
        let word = packed_finite(low, high, comptime!(config.halves()));
        put(&memory.q, query * comptime!(config.stride()) + pair, word);
        at += UNITS;
    }
}

/// Word of the arena at which a query starts.
#[cube]
pub fn query_start(
    buffers: &Buffers<'_>,
    query: u32,
    first: u32,
    rows: u32,
    #[comptime] config: MatrixAttentionConfig,
) -> u32 {
    let dim = comptime!(config.shape.head_dim);
    let group = comptime!(config.shape.group());
    let row = first + min(query / group, rows - 1);
    let head = cube_of_heads(buffers, comptime!(config.shape)) * group + query % group;
    buffers.args[comptime!(config.arg)]
        + row * comptime!(config.shape.heads * config.shape.head_dim)
        + head * dim
}

/// Keys, words as they lie or what codes stand for.
#[cube]
pub fn load_keys(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    #[comptime] config: MatrixAttentionConfig,
) {
    if let PageWords::Codes(bits) = comptime!(config.shape.kv) {
        load_coded_keys(buffers, memory, bits, config);
    } else {
        let pairs = comptime!(config.shape.head_dim / 2);
        let mut at = UNIT_POS;
        while at < comptime!(KEYS * config.shape.head_dim / 2) {
            let (key, pair) = (at / pairs, at % pairs);
            let from = memory.places[(key * 2) as usize] + pair;
            let word = buffers.words[from as usize];
            put(&memory.pages, key * comptime!(config.stride()) + pair, word);
            at += UNITS;
        }
    }
}

/// Values, turned.
#[cube]
pub fn load_values(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    #[comptime] config: MatrixAttentionConfig,
) {
    if let PageWords::Codes(bits) = comptime!(config.shape.kv) {
        load_coded_values(buffers, memory, bits, config);
    } else {
        load_words_of_values(buffers, memory, config);
    }
}

/// Values as they lie: of a pair of lanes and a pair of keys two words.
#[cube]
fn load_words_of_values(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    #[comptime] config: MatrixAttentionConfig,
) {
    // A plane takes eight pairs of lanes, whole sectors of memory, by four pairs of keys, which lie in different banks.
    let groups = comptime!(config.shape.value_dim / 16);
    let (of_eight, of_four) = (UNIT_POS % 8, UNIT_POS / 8 % 4);
    let mut at = UNIT_POS / PLANE;
    while at < comptime!(KEYS / 8 * config.shape.value_dim / 16) {
        let (keys, pair) = (at / groups * 4 + of_four, at % groups * 8 + of_eight);
        let first = memory.places[(keys * 4 + 1) as usize] + pair;
        let second = memory.places[(keys * 4 + 3) as usize] + pair;
        let first = buffers.words[first as usize];
        let second = buffers.words[second as usize];
        let to = pair * comptime!(2 * KEY_STRIDE) + keys;
        put(&memory.pages, to, (first & 0xffff) | (second << 16));
        let high = (first >> 16) | (second & 0xffff_0000);
        put(&memory.pages, to + KEY_STRIDE, high);
        at += comptime!(UNITS / PLANE);
    }
}
