//! What the kernel on [matrix units](super::matrix) holds in shared memory: inputs and dequantized weights in 16 bits.

use super::async_copies::start_copy;
use super::contract::{PartConfig, tile_pair};
use super::decode::{RUN, decode_run};
use super::env::{Buffers, put};
use super::fragments::{Halves, packed, put_words};
use super::matrix::{DEPTH, MatrixConfig, STRIDE};
use super::matrix_product::{MatrixTile, UNITS};
use super::norms::RowShares;
use super::packed_inputs::packed_row;
use super::unit_lanes::Lanes;
use cubecl::prelude::*;
use rusty_loader::Format;

/// The weights of part `p` of a step of the depth; lanes behind the last repeat it, elements past the row's end are zero. Like all tiles
/// they lie from row `slot` on.
#[cube]
pub fn load_weights(
    buffers: &Buffers<'_>,
    tiles: &Shared<[u32]>,
    lanes: &Lanes,
    step: u32,
    slot: u32,
    #[comptime] p: usize,
    #[comptime] halves: Halves,
    #[comptime] config: MatrixConfig,
    #[comptime] part: PartConfig,
) {
    let tile_lanes = comptime!(config.tile.lanes);
    let to = slot + comptime!(config.weights_from() + p as u32 * tile_lanes);
    let start = lanes.rows[p];
    let last = lanes.end - lanes.first - 1;
    if comptime!(config.by_words(part, halves)) {
        let from = start / 4 + step * WORDS;
        #[unroll]
        for i in 0..comptime!(shares(tile_lanes)) {
            let (lane, word) = share(i);
            let word = from + min(lane, last) * comptime!(part.row_bytes / 4) + word;
            load_four(
                buffers.weights,
                word,
                tiles,
                to,
                i,
                comptime!(config.native),
            );
        }
    } else {
        // All are read before the first is stored, so that what runs of a block have in common is read once.
        let count = comptime!((tile_lanes * RUNS).div_ceil(UNITS));
        let mut made = Sequence::<Array<u32>>::new();
        #[unroll]
        for i in 0..count {
            let (lane, piece) = run_of_unit(i, tile_lanes);
            let address = start + min(lane, last) * comptime!(part.row_bytes);
            made.push(decoded_run(
                buffers,
                address,
                step,
                piece,
                part.format,
                halves,
                comptime!(config.contract.k),
            ));
        }
        #[unroll]
        for i in 0..count {
            let (lane, piece) = run_of_unit(i, tile_lanes);
            if lane < tile_lanes {
                put_words(
                    tiles,
                    (to + lane) * STRIDE + piece * comptime!(RUN as u32 / 2),
                    &made[comptime!(i as usize)],
                    comptime!(RUN / 2),
                    comptime!(config.native),
                );
            }
        }
    }
}

/// Lane and piece of the unit's run number `i` of a step: units have all runs of a lane where there are lanes for all, else runs of
/// a lane lie side by side. Its block is then read once, by one unit or by neighbours.
#[cube]
fn run_of_unit(#[comptime] i: u32, #[comptime] lanes: u32) -> (u32, u32) {
    if comptime!(lanes.is_multiple_of(UNITS)) {
        let piece = comptime!(i % RUNS).runtime();
        (UNIT_POS + comptime!(i / RUNS * UNITS), piece)
    } else {
        let at = UNIT_POS + comptime!(i * UNITS);
        (at / RUNS, at % RUNS)
    }
}

/// Run `piece` of a step of the depth of the weights of a lane, of `k` elements that begin at byte `address`.
#[cube]
fn decoded_run(
    buffers: &Buffers<'_>,
    address: u32,
    step: u32,
    piece: u32,
    #[comptime] format: Format,
    #[comptime] halves: Halves,
    #[comptime] k: u32,
) -> Array<u32> {
    // So compilers see which runs are of one block.
    let run = step * RUNS + piece;
    let mut decoded = Array::<f32>::new(RUN);
    let whole = comptime!(k.is_multiple_of(DEPTH)).runtime();
    if whole || run < comptime!(k.div_ceil(RUN as u32)) {
        decode_run(buffers, address, run, &mut decoded, format, k);
    }
    let mut words = Array::<u32>::new(comptime!(RUN / 2));
    #[unroll]
    for i in 0..comptime!(RUN / 2) {
        let (low, high) = (decoded[comptime!(i * 2)], decoded[comptime!(i * 2 + 1)]);
        words[i] = packed(low, high, halves);
    }
    words
}

/// Runs of a lane in a step of the depth.
const RUNS: u32 = DEPTH / RUN as u32;
/// Words of a row of a tile.
const WORDS: u32 = DEPTH / 2;

/// How many fours of words of `rows` rows a unit loads.
fn shares(rows: u32) -> u32 {
    rows * WORDS / 4 / UNITS
}

/// Row and word of the unit's four number `i`: four units take a row.
#[cube]
fn share(#[comptime] i: u32) -> (u32, u32) {
    (UNIT_POS / 4 + comptime!(i * (UNITS / 4)), UNIT_POS % 4 * 4)
}

/// Loads the unit's four number `i` of a tile that starts at row `to`, from word `from` on, a multiple of four: later, where there is
/// an instruction for it.
#[cube]
fn load_four<T: CubePrimitive>(
    words: &[T],
    from: u32,
    tiles: &Shared<[u32]>,
    to: u32,
    #[comptime] i: u32,
    #[comptime] native: bool,
) {
    let (row, word) = share(i);
    let place = (to + row) * STRIDE + word;
    if comptime!(native) {
        start_copy(words, from, tiles, place);
    } else {
        #[unroll]
        for w in 0..4u32 {
            let value = u32::reinterpret(words[(from + w) as usize]);
            put(tiles, place + w, value);
        }
    }
}

/// The packed inputs of part `p`, which is the contraction's part `part`, of a step of the depth. Rows behind the last
/// repeat it.
#[cube]
pub fn load_packed(
    buffers: &Buffers<'_>,
    tiles: &Shared<[u32]>,
    count: u32,
    row: u32,
    step: u32,
    slot: u32,
    part: u32,
    #[comptime] p: usize,
    #[comptime] config: MatrixConfig,
) {
    let inputs = comptime!(config.packed.expect("packed inputs"));
    let to = slot + comptime!(p as u32 * config.tile.rows);
    #[unroll]
    for i in 0..comptime!(shares(config.tile.rows)) {
        let (m, word) = share(i);
        let own = min(row + m, count - 1);
        let start = packed_row(buffers, own, part, inputs);
        let from = start + step * WORDS + word;
        load_four(buffers.arena, from, tiles, to, i, comptime!(config.native));
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

/// The inputs of part `p`, which is the contraction's part `part`, of a step of the depth; zero past the row's end. A unit's words are all
/// of the same lanes, so that what depends on these is made once. Of the first part `squares` are summed, one for each of the unit's
/// rows.
#[cube]
pub fn load_inputs(
    buffers: &Buffers<'_>,
    tiles: &Shared<[u32]>,
    squares: &mut Array<f32>,
    count: u32,
    row: u32,
    step: u32,
    slot: u32,
    part: u32,
    #[comptime] p: usize,
    #[comptime] halves: Halves,
    #[comptime] config: MatrixConfig,
) {
    let before = slot + comptime!(p as u32 * config.tile.rows);
    let word = UNIT_POS % WORDS;
    let lane = step * DEPTH + word * 2;
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
