//! Contraction for many rows: a cube makes a [tile](super::tile) of rows by lanes of a unit, dequantizing each weight
//! once per tile into shared memory.

use super::contract::{
    ContractConfig, UnitConfig, finish_pair, lane_in_unit, lane_tile, scalar, tile_input,
};
use super::env::{Buffers, bound, put};
use super::norms::{RowShares, tile_norms};
use super::reduce::no_sums;
use super::tile::{
    DEPTH, LANES, QUAD, Quad, ROWS, SIDE, STRIDE, TILE_WORDS, UNITS, WeightRows, load_weights,
    multiply, own_lane, own_row,
};
use cubecl::prelude::*;

/// Quads of a row's inputs.
const QUADS: u32 = DEPTH / QUAD;
/// How units share the inputs of a tile: each makes a quad of some rows.
const INPUTS: RowShares = RowShares {
    parts: QUADS,
    rows: ROWS * QUADS / UNITS,
    units: UNITS,
};

impl ContractConfig {
    /// Floats of all parts' products of half of a tile's rows.
    fn product_floats(&self) -> usize {
        self.most_parts() * (ROWS / 2 * LANES) as usize
    }

    /// Bytes of shared memory of the tiled kernel.
    pub fn tile_bytes(&self) -> u32 {
        4 * (TILE_WORDS + ROWS) + 4 * self.product_floats() as u32
    }
}

/// Cubes: `(rows / ROWS, y * z >= tiles)`.
#[cube(launch_unchecked)]
pub fn gemm(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: ContractConfig,
) {
    let count = step[comptime!(config.rows)];
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let tile = lane_tile();
    let row = CUBE_POS_X * ROWS;
    let x_tile = Shared::<[Quad]>::new_slice(comptime!((ROWS * STRIDE) as usize));
    let w_tile = Shared::<[Quad]>::new_slice(comptime!((LANES * STRIDE) as usize));
    let products = Shared::<[f32]>::new_slice(comptime!(config.product_floats()));
    let norms = Shared::<[f32]>::new_slice(comptime!(ROWS as usize));
    if row < count {
        #[unroll]
        for u in 0..comptime!(config.units.len()) {
            let (inside, first) = lane_in_unit(
                &buffers,
                tile,
                comptime!(LANES),
                comptime!(config.clone()),
                u,
            );
            if inside {
                unit_tile(
                    &buffers,
                    &x_tile,
                    &w_tile,
                    &products,
                    &norms,
                    count,
                    row,
                    first,
                    comptime!(config.clone()),
                    comptime!(config.units[u].clone()),
                );
            }
        }
    }
}

#[cube]
fn unit_tile(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[Quad]>,
    w_tile: &Shared<[Quad]>,
    products: &Shared<[f32]>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    first: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let parts = comptime!(unit.parts.len());
    let end = buffers.args[comptime!(unit.arg + scalar::END)];
    let mut sums = Array::<f32>::new(comptime!(SIDE * SIDE * parts));
    let mut squares = no_sums(INPUTS.rows as usize);
    let mut depth = 0u32;
    while depth < config.k {
        #[unroll]
        for p in 0..parts {
            if comptime!(p == 0 || config.adapters.is_some()) {
                load_inputs(
                    buffers,
                    x_tile,
                    &mut squares,
                    count,
                    row,
                    depth,
                    comptime!(config.clone()),
                    comptime!(unit.parts[p]),
                    comptime!(p == 0),
                );
            }
            let part = comptime!(config.parts[unit.parts[p]]);
            let before = first - buffers.args[comptime!(unit.arg + scalar::FIRST)];
            load_weights(
                buffers,
                w_tile,
                buffers.args[comptime!(part.arg)] + before * comptime!(part.row_bytes),
                end - first,
                depth,
                comptime!(WeightRows {
                    format: part.format,
                    row_bytes: part.row_bytes,
                    k: config.k,
                }),
            );
            sync_cube();
            multiply(x_tile, w_tile, &mut sums, comptime!(p * SIDE * SIDE));
            sync_cube();
        }
        depth += DEPTH;
    }
    if comptime!(config.prologue.late_norm().is_some()) {
        tile_norms(
            norms,
            products,
            &squares,
            INPUTS,
            comptime!(config.k),
            comptime!(config.prologue.clone()),
        );
    }
    finish(
        buffers, products, norms, &sums, count, row, first, end, config, unit,
    );
}

/// Input tile, `[row][quad]`; zero past the row's end. Of the first part `squares` are summed, one for each of the unit's rows.
#[cube]
fn load_inputs(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[Quad]>,
    squares: &mut Array<f32>,
    count: u32,
    row: u32,
    depth: u32,
    #[comptime] config: ContractConfig,
    #[comptime] part: usize,
    #[comptime] is_first: bool,
) {
    let q = UNIT_POS % QUADS;
    #[unroll]
    for i in 0..comptime!(INPUTS.rows) {
        let m = UNIT_POS / QUADS + comptime!(i * (UNITS / QUADS));
        let at = min(row + m, count - 1);
        let mut quad = Quad::empty();
        #[unroll]
        for j in 0..comptime!(QUAD as usize) {
            let lane = depth + q * QUAD + j as u32;
            let (value, square) = tile_input(buffers, at, lane, part, comptime!(config.clone()));
            quad.insert(j, value);
            if comptime!(is_first) {
                squares[i as usize] += square;
            }
        }
        put(x_tile, m * STRIDE + q, quad);
    }
}

/// Products go through shared memory, half of the rows at a time, so that units take pairs of lanes in turn.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    tile: &Shared<[f32]>,
    norms: &Shared<[f32]>,
    sums: &Array<f32>,
    count: u32,
    row: u32,
    first: u32,
    end: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let parts = comptime!(unit.parts.len());
    let rows = comptime!(ROWS / 2);
    for half in 0..2u32 {
        keep_half(tile, sums, half, parts);
        sync_cube();
        let mut task = UNIT_POS;
        while task < comptime!(ROWS / 2 * LANES / 2) {
            let m = task / comptime!(LANES / 2);
            let local = (task % comptime!(LANES / 2)) * 2;
            let at = row + half * rows + m;
            if at < count && first + local < end {
                let mut scale = 1.0f32;
                if comptime!(config.prologue.late_norm().is_some()) {
                    scale = norms[(half * rows + m) as usize];
                }
                let mut products = Array::<f32>::new(comptime!(parts * 2));
                #[unroll]
                for p in 0..parts {
                    #[unroll]
                    for side in 0..2usize {
                        let from = (comptime!(p as u32 * ROWS / 2) + m) * LANES + local;
                        products[comptime!(p * 2 + side)] =
                            tile[(from + side as u32) as usize] * scale;
                    }
                }
                finish_pair(
                    buffers,
                    &products,
                    at,
                    first + local,
                    end,
                    comptime!(unit.clone()),
                    comptime!(config.parts.len()),
                    comptime!(config.adapters),
                );
            }
            task += UNITS;
        }
        sync_cube();
    }
}

/// The sums of the upper or the lower half of the rows, `[part][row][lane]`.
#[cube]
fn keep_half(tile: &Shared<[f32]>, sums: &Array<f32>, half: u32, #[comptime] parts: usize) {
    #[unroll]
    for own in 0..2usize {
        if half == own as u32 {
            #[unroll]
            for i in 0..comptime!(parts * SIDE * SIDE / 2) {
                let (p, m, l) = comptime!((i / SIDE * 2 / SIDE, i / SIDE % (SIDE / 2), i % SIDE));
                let row = own_row(m);
                let at = (comptime!(p as u32 * ROWS / 2) + row) * LANES + own_lane(l);
                let sum = sums[comptime!((p * SIDE + own * SIDE / 2 + m) * SIDE + l)];
                put(tile, at, sum);
            }
        }
    }
}
