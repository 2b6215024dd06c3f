//! What the kernel on [matrix units](super::matrix) holds in shared memory: inputs and dequantized weights in 16 bits.

use super::contract::{UnitConfig, scalar, tile_pair};
use super::decode::{RUN, decode_run};
use super::env::{Buffers, put};
use super::fragments::{Halves, packed, put_words};
use super::matrix::{DEPTH, MatrixConfig, STRIDE};
use super::matrix_product::{MatrixTile, UNITS};
use super::norms::RowShares;
use cubecl::prelude::*;

/// The weights of part `p` from `depth` on; lanes behind the last repeat it, elements past the row's end are zero.
#[cube]
pub fn load_weights(
    buffers: &Buffers<'_>,
    tiles: &Shared<[u32]>,
    first: u32,
    depth: u32,
    #[comptime] p: usize,
    #[comptime] halves: Halves,
    #[comptime] config: MatrixConfig,
    #[comptime] unit: UnitConfig,
) {
    let part = comptime!(config.contract.parts[unit.parts[p]]);
    let lanes = comptime!(config.tile.lanes);
    let before = comptime!(config.weights_from() + p as u32 * config.tile.lanes);
    let own = first - buffers.args[comptime!(unit.arg + scalar::FIRST)];
    let start = buffers.args[comptime!(part.arg)] + own * comptime!(part.row_bytes);
    let last = buffers.args[comptime!(unit.arg + scalar::END)] - first - 1;
    if comptime!(config.by_words(unit.parts[p], halves)) {
        load_words(
            buffers,
            tiles,
            start + depth * 2,
            last,
            before,
            comptime!(part.row_bytes),
            comptime!(config.clone()),
        );
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
            words[i] = packed(low, high, halves);
        }
        put_words(
            tiles,
            to,
            &words,
            comptime!(RUN / 2),
            comptime!(config.native),
        );
    }
}

/// Weights of 16 bits as they lie, from byte `start` on.
#[cube]
fn load_words(
    buffers: &Buffers<'_>,
    tiles: &Shared<[u32]>,
    start: u32,
    last: u32,
    #[comptime] before: u32,
    #[comptime] row_bytes: u32,
    #[comptime] config: MatrixConfig,
) {
    let lanes = comptime!(config.tile.lanes);
    if comptime!(config.native) {
        // Rows are whole fours of words: four units take one.
        let quarter = UNIT_POS % 4;
        let from = buffers.weights.as_vectorized();
        let from = from.with_vector_size::<Const<4>>();
        let to = tiles.as_vectorized().with_vector_size::<Const<4>>();
        #[unroll]
        for i in 0..comptime!(lanes / (UNITS / 4)) {
            let lane = UNIT_POS / 4 + comptime!(i * (UNITS / 4));
            let address = start + min(lane, last) * row_bytes;
            let four = from[(address / 16 + quarter) as usize];
            put(to, (before + lane) * comptime!(STRIDE / 4) + quarter, four);
        }
    } else {
        let mut at = UNIT_POS;
        while at < comptime!(lanes * WORDS) {
            let (lane, word) = (at / WORDS, at % WORDS);
            let address = start + min(lane, last) * row_bytes;
            let value = buffers.weights[(address / 4 + word) as usize];
            put(tiles, (before + lane) * STRIDE + word, value);
            at += UNITS;
        }
    }
}

/// How units share the inputs of a tile: each makes a word of some rows.
pub const fn input_shares(tile: MatrixTile) -> RowShares {
    RowShares {
        parts: WORDS,
        rows: tile.rows / (UNITS / WORDS),
        units: UNITS,
    }
}

/// Words of a row's inputs.
const WORDS: u32 = DEPTH / 2;

/// The inputs of part `p`, which is the contraction's part `part`, from `depth` on; zero past the row's end. A unit's words are all
/// of the same lanes, so that what depends on these is made once. Of the first part `squares` are summed, one for each of the unit's
/// rows.
#[cube]
pub fn load_inputs(
    buffers: &Buffers<'_>,
    tiles: &Shared<[u32]>,
    squares: &mut Array<f32>,
    count: u32,
    row: u32,
    depth: u32,
    #[comptime] p: usize,
    #[comptime] part: usize,
    #[comptime] halves: Halves,
    #[comptime] config: MatrixConfig,
) {
    let before = comptime!(p as u32 * config.tile.rows);
    let word = UNIT_POS % WORDS;
    let lane = depth + word * 2;
    #[unroll]
    for i in 0..comptime!(input_shares(config.tile).rows) {
        let m = UNIT_POS / WORDS + comptime!(i * (UNITS / WORDS));
        let own = min(row + m, count - 1);
        let (low, high, square) =
            tile_pair(buffers, own, lane, part, comptime!(config.contract.clone()));
        if comptime!(p == 0) {
            squares[i as usize] += square;
        }
        let value = packed(low, high, halves);
        put(tiles, (before + m) * STRIDE + word, value);
    }
}
