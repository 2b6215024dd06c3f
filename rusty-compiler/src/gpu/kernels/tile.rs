//! The tile of the kernels for many rows: [`ROWS`] input rows by [`LANES`] lanes, multiplied [`DEPTH`] elements at a
//! time out of shared memory. Each weight is dequantized once per tile.

use super::decode::{RUN, decode_run};
use super::env::{Buffers, put};
use cubecl::prelude::*;
use rusty_loader::Format;

/// Rows of a tile.
pub const ROWS: u32 = 32;
/// Lanes of a tile.
pub const LANES: u32 = 64;
/// Depth of a tile.
pub const DEPTH: u32 = 32;
/// Units of a cube: one run of the weight tile each.
pub const UNITS: u32 = LANES * DEPTH / RUN as u32;
/// Rows and lanes of a unit.
pub const SIDE: usize = 4;
/// Units along the lanes of a tile.
pub const ACROSS: u32 = LANES / SIDE as u32;
/// Distance of input columns in shared memory: odd, so that columns fall into different banks.
pub const STRIDE: u32 = ROWS + 1;

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

/// Weight tile, `[depth][lane]`, of the `lanes` rows (or the first [`LANES`] of them) from byte `start` on: each unit
/// decodes one run. Zero past the rows' end; lanes behind the last repeat it.
#[cube]
pub fn load_weights(
    buffers: &Buffers<'_>,
    w_tile: &Shared<[f32]>,
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
    #[unroll]
    for i in 0..RUN {
        put(
            w_tile,
            (piece * RUN as u32 + i as u32) * LANES + local,
            w[i],
        );
    }
}

/// Adds the product of the tiles to this unit's sums, `[row][lane]` from `start`.
#[cube]
pub fn multiply(
    x_tile: &Shared<[f32]>,
    w_tile: &Shared<[f32]>,
    sums: &mut Array<f32>,
    #[comptime] start: usize,
) {
    let lane = (UNIT_POS % ACROSS) * SIDE as u32;
    let row = (UNIT_POS / ACROSS) * SIDE as u32;
    let mut x = Array::<f32>::new(SIDE);
    let mut w = Array::<f32>::new(SIDE);
    for k in 0..DEPTH {
        #[unroll]
        for i in 0..SIDE {
            x[i] = x_tile[(k * STRIDE + row + i as u32) as usize];
            w[i] = w_tile[(k * LANES + lane + i as u32) as usize];
        }
        #[unroll]
        for m in 0..SIDE {
            #[unroll]
            for l in 0..SIDE {
                sums[comptime!(start + m * SIDE + l)] += x[m] * w[l];
            }
        }
    }
}
