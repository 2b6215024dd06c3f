//! The tile of the kernels for many rows: [`ROWS`] input rows by [`LANES`] lanes, multiplied [`DEPTH`] elements at a
//! time out of shared memory. Each weight is dequantized once per tile.
//!
//! Elements lie in shared memory by fours, neighbours of a row, so that a unit reads four at once: for four rows and four lanes
//! eight reads serve 64 products. A unit's rows and lanes lie apart, so that those of neighbouring units lie side by side.

use super::contract::TILE_DEPTH;
use super::decode::{RUN, decode_run};
use super::env::{Buffers, put};
use cubecl::prelude::*;
use rusty_loader::Format;

/// Rows of a tile.
pub const ROWS: u32 = 32;
/// Lanes of a tile.
pub const LANES: u32 = 64;
/// Depth of a tile.
pub const DEPTH: u32 = TILE_DEPTH;
/// Units of a cube: one run of the weight tile each.
pub const UNITS: u32 = LANES * DEPTH / RUN as u32;
/// Rows and lanes of a unit.
pub const SIDE: usize = 4;
/// Units along the lanes of a tile, and so the distance of a unit's lanes.
pub const ACROSS: u32 = LANES / SIDE as u32;
/// Units along the rows of a tile, and so the distance of a unit's rows.
pub const DOWN: u32 = UNITS / ACROSS;
/// Elements that are read at once.
pub const QUAD: u32 = 4;
/// Quads from one row of shared memory to the next: one more than it has, so that rows fall into different banks.
pub const STRIDE: u32 = DEPTH / QUAD + 1;
/// Words of both tiles in shared memory.
pub const TILE_WORDS: u32 = (ROWS + LANES) * STRIDE * QUAD;

/// Neighbouring elements of a row.
pub type Quad = Vector<f32, Const<4>>;

/// How the rows of a matrix lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightRows {
    /// Stored format.
    pub format: Format,
    /// Stored bytes of a row.
    pub row_bytes: u32,
    /// Elements of a row.
    pub k: u32,
}

/// Weight tile, `[lane][quad]`, of the `lanes` rows (or the first [`LANES`] of them) from byte `start` on: each unit
/// decodes one run. Zero past the rows' end; lanes behind the last repeat it.
#[cube]
pub fn load_weights(
    buffers: &Buffers<'_>,
    w_tile: &Shared<[Quad]>,
    start: u32,
    lanes: u32,
    depth: u32,
    #[comptime] rows: WeightRows,
) {
    let local = UNIT_POS % LANES;
    let piece = UNIT_POS / LANES;
    let run = depth / RUN as u32 + piece;
    let mut w = Array::<f32>::new(RUN);
    if run < comptime!(rows.k.div_ceil(RUN as u32)) {
        decode_run(
            buffers,
            start + min(local, lanes - 1) * comptime!(rows.row_bytes),
            run,
            &mut w,
            comptime!(rows.format),
            comptime!(rows.k),
        );
    }
    let to = local * STRIDE + piece * comptime!(RUN as u32 / QUAD);
    #[unroll]
    for q in 0..comptime!(RUN / QUAD as usize) {
        let mut quad = Quad::empty();
        #[unroll]
        for i in 0..comptime!(QUAD as usize) {
            quad.insert(i, w[comptime!(q * QUAD as usize + i)]);
        }
        put(w_tile, to + q as u32, quad);
    }
}

/// The unit's lane `l` of a tile.
#[cube]
pub fn own_lane(#[comptime] l: usize) -> u32 {
    UNIT_POS % ACROSS + comptime!(l as u32 * ACROSS)
}

/// The unit's row `m` of a tile.
#[cube]
pub fn own_row(#[comptime] m: usize) -> u32 {
    UNIT_POS / ACROSS + comptime!(m as u32 * DOWN)
}

/// Adds the product of the tiles to this unit's sums, `[row][lane]` from `start`.
#[cube]
pub fn multiply(
    x_tile: &Shared<[Quad]>,
    w_tile: &Shared<[Quad]>,
    sums: &mut Array<f32>,
    #[comptime] start: usize,
) {
    for q in 0..comptime!(DEPTH / QUAD) {
        let mut x = Array::<Quad>::new(SIDE);
        #[unroll]
        for m in 0..SIDE {
            x[m] = x_tile[(own_row(m) * STRIDE + q) as usize];
        }
        #[unroll]
        for l in 0..SIDE {
            let w = w_tile[(own_lane(l) * STRIDE + q) as usize];
            #[unroll]
            for m in 0..SIDE {
                #[unroll]
                for i in 0..comptime!(QUAD as usize) {
                    sums[comptime!(start + m * SIDE + l)] += x[m].extract(i) * w.extract(i);
                }
            }
        }
    }
}
