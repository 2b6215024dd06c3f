//! What [attention on matrix units](super::matrix_attention) holds in shared memory, and how queries, keys and values come there.

use super::async_copies::{close_copies, start_copy};
use super::attention_shape::cube_of_heads;
use super::env::{Buffers, put};
use super::fragments::{ALIGNMENT, packed_finite};
use super::matrix_attention::MatrixAttentionConfig;
use super::matrix_attention_blocks::{load_coded_rows, load_rotated_queries};
use super::matrix_product::UNITS;
use super::page_words::PageWords;
use super::sink::token_base;
use crate::PAGE_TOKENS;
use cubecl::prelude::*;

/// Shared memory of a cube.
#[derive(CubeType)]
pub struct CubeMemory {
    /// Scaled queries, then keys, then values: rows of pairs of lanes. At the end the result, `[query][lane]`.
    pub tiles: Shared<[u32]>,
    /// Where each key starts, of this step and the next in turn.
    pub places: Shared<[u32]>,
    /// What stands for matrix units exchanges.
    pub exchange: Shared<[u32]>,
}

#[cube]
impl CubeMemory {
    /// Memory for a configuration.
    pub fn new(#[comptime] config: MatrixAttentionConfig) -> Self {
        CubeMemory {
            tiles: Shared::<[u32]>::new_aligned_slice(comptime!(config.tile_words()), ALIGNMENT),
            places: Shared::<[u32]>::new_slice(comptime!(config.cut.keys as usize * 2)),
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
        load_rotated_queries(buffers, memory, first, rows, config);
    } else {
        load_plain_queries(buffers, memory, first, rows, config);
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
    let scale = comptime!(config.query_scale());
    let mut at = UNIT_POS;
    while at < comptime!(config.queries() * config.shape.head_dim / 2) {
        let (query, pair) = (at / pairs, at % pairs);
        let start = query_start(buffers, query, first, rows, comptime!(config.clone()));
        let from = start + pair * 2;
        let low = buffers.arena[from as usize] * scale;
        let high = buffers.arena[(from + 1) as usize] * scale;
        let word = packed_finite(low, high, comptime!(config.halves()));
        put(
            &memory.tiles,
            query * comptime!(config.stride()) + pair,
            word,
        );
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

/// Where the keys of the step from `key` on start for the cube's head. Behind the end lies the last key again.
#[cube]
pub fn locate(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    pages: u32,
    key: u32,
    end: u32,
    turn: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let shape = comptime!(config.shape);
    if UNIT_POS < config.cut.keys {
        let position = min(key + UNIT_POS, end - 1);
        let head = CUBE_POS_Y / shape.shares * comptime!(shape.kv.token_words(shape.head_dim));
        let place = token_base(
            buffers.step,
            pages,
            position,
            0u32.runtime(),
            comptime!(shape.halves()),
            comptime!(shape.words()),
        );
        put(
            &memory.places,
            turn * config.cut.keys + UNIT_POS,
            place + head,
        );
    }
}

/// Loads the keys of a step.
#[cube]
pub fn load_keys(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    turn: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let rows = comptime!(TokenRows {
        dim: config.shape.head_dim,
        first: config.queries(),
        behind: 0,
    });
    load_rows(buffers, memory, turn, rows, config);
}

/// Loads the values of a step, and closes the group of their copies.
#[cube]
pub fn load_values(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    turn: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let rows = comptime!(TokenRows {
        dim: config.shape.value_dim,
        first: config.values_from(),
        behind: PAGE_TOKENS as u32 * config.shape.words(),
    });
    load_rows(buffers, memory, turn, rows, comptime!(config.clone()));
    if comptime!(config.copies()) {
        close_copies();
    }
}

/// Keys or values of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenRows {
    /// Lanes.
    pub dim: u32,
    /// First row in shared memory.
    pub first: u32,
    /// Words of pages by which they lie behind the keys.
    pub behind: u32,
}

#[cube]
fn load_rows(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    turn: u32,
    #[comptime] rows: TokenRows,
    #[comptime] config: MatrixAttentionConfig,
) {
    let copies = comptime!(config.copies());
    if let PageWords::Codes(bits) = comptime!(config.shape.kv) {
        load_coded_rows(buffers, memory, turn, bits, rows, config);
    } else {
        let words = comptime!(if copies { 4u32 } else { 1 });
        let some = comptime!(rows.dim / 2 / words);
        let all = comptime!(config.cut.keys * some);
        #[unroll]
        for i in 0..comptime!(all.div_ceil(UNITS)) {
            let at = UNIT_POS + comptime!(i * UNITS);
            if comptime!(all.is_multiple_of(UNITS)) || at < all {
                let (key, word) = (at / some, at % some * words);
                let place = memory.places[(turn * config.cut.keys + key) as usize];
                let from = place + rows.behind + word;
                let to = (rows.first + key) * comptime!(config.stride()) + word;
                if comptime!(copies) {
                    start_copy(buffers.words, from, &memory.tiles, to);
                } else {
                    put(&memory.tiles, to, buffers.words[from as usize]);
                }
            }
        }
    }
}
