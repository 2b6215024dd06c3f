//! Pages of [blocks of codes](super::page_blocks) for [attention on matrix units](super::matrix_attention): keys and values become
//! halves in shared memory, a run of lanes a unit, so that a block's step and a word of codes are read once for several of them.
//!
//! Queries are rotated like keys before they are rounded, sums of values rotated back. Codes times steps are rounded to half precision,
//! whatever is beyond it to its largest number: a rotated block of the largest lanes that are stored would be.

use super::env::Buffers;
use super::fragments::put_lanes;
use super::matrix_attention::MatrixAttentionConfig;
use super::matrix_attention_loads::{CubeMemory, TokenRows, query_start};
use super::matrix_product::{MatrixTile, UNITS};
use super::page_blocks::{rotate, word_values};
use super::page_words::BLOCK;
use cubecl::prelude::*;

/// Lanes that a unit decodes at once: a word of the narrowest codes.
const RUN: u32 = 8;

/// Queries as the plain ones are loaded, but rotated: a unit takes blocks.
#[cube]
pub fn load_rotated_queries(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    first: u32,
    rows: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let blocks = comptime!(config.shape.head_dim / BLOCK);
    let scale = comptime!(config.query_scale());
    let mut at = UNIT_POS;
    while at < comptime!(config.queries() * config.shape.head_dim / BLOCK) {
        let (query, block) = (at / blocks, at % blocks);
        let from = query_start(buffers, query, first, rows, comptime!(config.clone()));
        let mut lanes = Array::<f32>::new(comptime!(BLOCK as usize));
        #[unroll]
        for i in 0..BLOCK {
            lanes[i as usize] = buffers.arena[(from + block * BLOCK + i) as usize] * scale;
        }
        rotate(&mut lanes);
        let to = query * comptime!(config.stride()) + block * comptime!(BLOCK / 2);
        put_lanes(
            &memory.tiles,
            to,
            &lanes,
            comptime!(BLOCK as usize),
            comptime!(config.halves()),
        );
        at += UNITS;
    }
}

/// Keys or values of codes of `bits` bits.
#[cube]
pub fn load_coded_rows(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    turn: u32,
    #[comptime] bits: u32,
    #[comptime] rows: TokenRows,
    #[comptime] config: MatrixAttentionConfig,
) {
    let runs = comptime!(rows.dim / RUN);
    let mut at = UNIT_POS;
    while at < comptime!(config.cut.keys * rows.dim / RUN) {
        let (key, run) = (at / runs, at % runs);
        let place = memory.places[(turn * config.cut.keys + key) as usize];
        let lanes = run_values(buffers.words, place + rows.behind, run, bits);
        let to = (rows.first + key) * comptime!(config.stride()) + run * comptime!(RUN / 2);
        put_lanes(
            &memory.tiles,
            to,
            &lanes,
            comptime!(RUN as usize),
            comptime!(config.halves()),
        );
        at += UNITS;
    }
}

/// Run `run` of the lanes of blocks that start at word `at`.
#[cube]
fn run_values(words: &[u32], at: u32, run: u32, #[comptime] bits: u32) -> Array<f32> {
    let runs = comptime!(BLOCK / RUN);
    let block = at + run / runs * comptime!(bits + 1);
    let codes = block + run % runs * comptime!(RUN * bits / 32);
    let step = f32::reinterpret(words[(block + bits) as usize]);
    let mut lanes = Array::<f32>::new(comptime!(RUN as usize));
    #[unroll]
    for w in 0..comptime!(RUN * bits / 32) {
        let word = words[(codes + w) as usize];
        word_values(
            word,
            step,
            &mut lanes,
            comptime!((w * 32 / bits) as usize),
            bits,
        );
    }
    lanes
}

/// Sums of rotated values become those of plain ones. Of a row of a block, four fragments side by side, a unit has two lanes of
/// each, which it rotates among themselves and then with the three units beside it.
#[cube]
pub fn turn_sums(sums: &mut Array<f32>, #[comptime] tile: MatrixTile) {
    let blocks = comptime!(tile.fragments() / 4);
    #[unroll]
    for row in 0..comptime!(tile.eights() as usize * blocks) {
        let (m, half, block) = comptime!((row / 2 / blocks, row % 2, row / 2 % blocks));
        let first = comptime!((m * tile.fragments() + block * 4) * 4 + half * 2);
        let mut lanes = Array::<f32>::new(8usize);
        #[unroll]
        for i in 0..8usize {
            lanes[i] = sums[comptime!(first + i / 2 * 4 + i % 2)] * 0.176_776_7_f32;
        }
        #[unroll]
        for level in 0..3u32 {
            let step = comptime!(1usize << level);
            #[unroll]
            for i in 0..4usize {
                let low = comptime!(i / step * 2 * step + i % step);
                let (a, b) = (lanes[low], lanes[comptime!(low + step)]);
                lanes[low] = a + b;
                lanes[comptime!(low + step)] = a - b;
            }
        }
        #[unroll]
        for level in 0..2u32 {
            // The unit with the lower lane takes the sum, the other the difference.
            let upper = (UNIT_POS >> level) % 2 == 1;
            let sign = select(upper, -1.0f32, 1.0f32);
            #[unroll]
            for i in 0..8usize {
                let other = plane_shuffle_xor(lanes[i], comptime!(1u32 << level));
                lanes[i] = other + lanes[i] * sign;
            }
        }
        #[unroll]
        for i in 0..8usize {
            sums[comptime!(first + i / 2 * 4 + i % 2)] = lanes[i];
        }
    }
}
