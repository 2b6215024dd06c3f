//! What the kernel on [matrix units](super::matrix) holds in shared memory: inputs and dequantized weights in bf16, and the norm
//! factors of its rows.

use super::body::evaluate;
use super::contract::{UnitConfig, tile_pair};
use super::decode::{RUN, decode_run};
use super::env::{Buffers, put};
use super::fragments::packed;
use super::matrix::{DEPTH, MatrixConfig, STRIDE};
use super::matrix_product::UNITS;
use super::reduce::plane_total;
use cubecl::prelude::*;

/// The norm factor of each row of the tile; a plane makes one row at a time.
#[cube]
pub fn tile_norms(
    buffers: &Buffers<'_>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    #[comptime] config: MatrixConfig,
) {
    let none = Sequence::<f32>::new();
    let program = comptime!(config.contract.prologue.clone());
    let (x, eps) = comptime!(program.norm(program.reductions()[0]));
    let plane = comptime!(config.contract.team.plane);
    let mut m = UNIT_POS / plane;
    while m < config.tile.rows {
        let at = min(row + m, count - 1);
        let mut sum = 0.0f32;
        let mut lane = UNIT_POS % plane;
        while lane < config.contract.k {
            let value = evaluate(
                buffers,
                &none,
                &none,
                0u32,
                at,
                lane,
                comptime!(program.clone()),
                x,
            );
            sum += value * value;
            lane += plane;
        }
        let total = plane_total(sum, plane);
        if UNIT_POS.is_multiple_of(plane) {
            put(
                norms,
                m,
                (total / comptime!(config.contract.k as f32) + eps).inverse_sqrt(),
            );
        }
        m += comptime!(UNITS / plane);
    }
    sync_cube();
}

/// The weights of part `p` from `depth` on; lanes behind the last repeat it, elements past the row's end are zero.
#[cube]
pub fn load_weights(
    buffers: &Buffers<'_>,
    tiles: &Shared<[u32]>,
    first: u32,
    depth: u32,
    #[comptime] p: usize,
    #[comptime] config: MatrixConfig,
    #[comptime] unit: UnitConfig,
) {
    let part = comptime!(config.contract.parts[unit.parts[p]]);
    let lanes = comptime!(config.tile.lanes);
    let before = comptime!(config.weights_from() + p as u32 * config.tile.lanes);
    let own = first - buffers.args[comptime!(unit.arg)];
    let start = buffers.args[comptime!(part.arg)] + own * comptime!(part.row_bytes);
    let last = buffers.args[comptime!(unit.arg + 1)] - first - 1;
    if comptime!(config.by_words(unit.parts[p]) && config.native) {
        // Rows are whole fours of words: four units take one.
        let quarter = UNIT_POS % 4;
        let from = buffers.weights.as_vectorized();
        let from = from.with_vector_size::<Const<4>>();
        let to = tiles.as_vectorized().with_vector_size::<Const<4>>();
        #[unroll]
        for i in 0..comptime!(lanes / (UNITS / 4)) {
            let lane = UNIT_POS / 4 + comptime!(i * (UNITS / 4));
            let address = start + min(lane, last) * comptime!(part.row_bytes) + depth * 2;
            let four = from[(address / 16 + quarter) as usize];
            let at = (before + lane) * comptime!(STRIDE / 4) + quarter;
            put(to, at, four);
        }
    } else if comptime!(config.by_words(unit.parts[p])) {
        let mut at = UNIT_POS;
        while at < comptime!(lanes * DEPTH / 2) {
            let (lane, word) = (at / (DEPTH / 2), at % (DEPTH / 2));
            let address = start + min(lane, last) * comptime!(part.row_bytes) + depth * 2;
            let value = buffers.weights[(address / 4 + word) as usize];
            put(tiles, (before + lane) * STRIDE + word, value);
            at += UNITS;
        }
    } else if UNIT_POS < comptime!(lanes * DEPTH / RUN as u32) {
        let lane = UNIT_POS % lanes;
        let piece = UNIT_POS / lanes;
        let run = depth / RUN as u32 + piece;
        let mut decoded = Array::<f32>::new(RUN);
        if run < comptime!(config.contract.k.div_ceil(RUN as u32)) {
            decode_run(
                buffers,
                start + min(lane, last) * comptime!(part.row_bytes),
                run,
                &mut decoded,
                comptime!(part.format),
                comptime!(config.contract.k),
            );
        }
        let to = (before + lane) * STRIDE + piece * comptime!(RUN as u32 / 2);
        let mut words = Array::<u32>::new(comptime!(RUN / 2));
        #[unroll]
        for i in 0..comptime!(RUN / 2) {
            let (low, high) = (decoded[comptime!(i * 2)], decoded[comptime!(i * 2 + 1)]);
            words[i] = packed(low, high, comptime!(config.halves()));
        }
        put_words(tiles, to, &words, comptime!(config.native));
    }
}

/// The inputs of part `p`, which is the contraction's part `part`, from `depth` on; zero past the row's end. A unit's words are all
/// of the same lanes, so that what depends on these is made once.
#[cube]
pub fn load_inputs(
    buffers: &Buffers<'_>,
    tiles: &Shared<[u32]>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    depth: u32,
    #[comptime] p: usize,
    #[comptime] part: usize,
    #[comptime] config: MatrixConfig,
) {
    let words = comptime!(DEPTH / 2);
    let before = comptime!(p as u32 * config.tile.rows);
    let (m, word) = (UNIT_POS / words, UNIT_POS % words);
    let lane = depth + word * 2;
    #[unroll]
    for i in 0..comptime!(config.tile.rows * words / UNITS) {
        let m = m + comptime!(i * (UNITS / words));
        let own = min(row + m, count - 1);
        let (low, high) = tile_pair(
            buffers,
            norms,
            m,
            own,
            lane,
            part,
            comptime!(config.contract.clone()),
        );
        let value = packed(low, high, comptime!(config.halves()));
        put(tiles, (before + m) * STRIDE + word, value);
    }
}

/// Stores eight words from `to` on, a multiple of four, by fours where the language can.
#[cube]
fn put_words(tile: &Shared<[u32]>, to: u32, words: &Array<u32>, #[comptime] native: bool) {
    if comptime!(native) {
        #[unroll]
        for i in 0..2usize {
            let mut four = Vector::<u32, Const<4>>::empty();
            #[unroll]
            for w in 0..4usize {
                four.insert(w, words[comptime!(i * 4 + w)]);
            }
            let fours = tile.as_vectorized().with_vector_size::<Const<4>>();
            put(fours, to / 4 + i as u32, four);
        }
    } else {
        #[unroll]
        for i in 0..8usize {
            put(tile, to + i as u32, words[i]);
        }
    }
}
