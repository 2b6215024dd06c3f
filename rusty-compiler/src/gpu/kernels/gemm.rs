//! Contraction for many rows: a cube makes a [tile](super::tile) of rows by lanes of a unit, dequantizing each weight
//! once per tile into shared memory.

use super::body::evaluate;
use super::contract::{
    ContractConfig, UnitConfig, finish_pair, lane_in_unit, tile_input, tile_number,
};
use super::env::{Buffers, bound, put};
use super::tile::{
    ACROSS, DEPTH, LANES, ROWS, SIDE, STRIDE, UNITS, WeightRows, load_weights, multiply,
};
use cubecl::prelude::*;

impl ContractConfig {
    /// Floats of the weight tile: one part's weights, or all parts' products.
    fn tile_floats(&self) -> usize {
        ((DEPTH * LANES) as usize).max(self.most_parts() * (ROWS * LANES) as usize)
    }

    /// Bytes of shared memory of the tiled kernel.
    pub fn tile_bytes(&self) -> u32 {
        4 * (DEPTH * STRIDE + UNITS) + 4 * self.tile_floats() as u32
    }
}

/// Cubes: `(x * y >= tiles, z = rows / ROWS)`.
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
    let tile = tile_number();
    let row = CUBE_POS_Z * ROWS;
    let x_tile = Shared::<[f32]>::new_slice(comptime!((DEPTH * STRIDE) as usize));
    // Holds the products before they are stored, too.
    let w_tile = Shared::<[f32]>::new_slice(comptime!(config.tile_floats()));
    let norms = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    if row < count {
        if comptime!(!config.prologue.reductions().is_empty()) {
            tile_norms(&buffers, &norms, count, row, comptime!(config.clone()));
        }
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

/// The norm factor of each row of the tile, in the first [`ROWS`] elements.
#[cube]
fn tile_norms(
    buffers: &Buffers<'_>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    #[comptime] config: ContractConfig,
) {
    let none = Sequence::<f32>::new();
    let share = comptime!(UNITS / ROWS);
    let (x, eps) = comptime!(config.prologue.norm(config.prologue.reductions()[0]));
    let at = min(row + UNIT_POS / share, count - 1);
    let mut sum = 0.0f32;
    let mut lane = UNIT_POS % share;
    while lane < config.k {
        let value = evaluate(
            buffers,
            &none,
            &none,
            0u32,
            at,
            lane,
            comptime!(config.prologue.clone()),
            x,
        );
        sum += value * value;
        lane += share;
    }
    put(norms, UNIT_POS, sum);
    sync_cube();
    let mut total = 0.0f32;
    if UNIT_POS < ROWS {
        #[unroll]
        for i in 0..share {
            total += norms[(UNIT_POS * share + i) as usize];
        }
    }
    sync_cube();
    if UNIT_POS < ROWS {
        put(
            norms,
            UNIT_POS,
            (total / comptime!(config.k as f32) + eps).inverse_sqrt(),
        );
    }
    sync_cube();
}

#[cube]
fn unit_tile(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[f32]>,
    w_tile: &Shared<[f32]>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    first: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let parts = comptime!(unit.parts.len());
    let end = buffers.args[comptime!(unit.arg + 1)];
    let mut sums = Array::<f32>::new(comptime!(SIDE * SIDE * parts));
    let mut depth = 0u32;
    while depth < config.k {
        #[unroll]
        for p in 0..parts {
            if comptime!(p == 0 || config.adapters.is_some()) {
                load_inputs(
                    buffers,
                    x_tile,
                    norms,
                    count,
                    row,
                    depth,
                    comptime!(config.clone()),
                    comptime!(unit.parts[p]),
                );
            }
            let part = comptime!(config.parts[unit.parts[p]]);
            let before = first - buffers.args[comptime!(unit.arg)];
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
    finish(buffers, w_tile, &sums, count, row, first, end, config, unit);
}

/// Input tile, `[depth][row]`; zero past the row's end.
#[cube]
fn load_inputs(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[f32]>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    depth: u32,
    #[comptime] config: ContractConfig,
    #[comptime] part: usize,
) {
    for i in 0..comptime!(ROWS * DEPTH / UNITS) {
        let element = UNIT_POS + i * UNITS;
        let k = element % DEPTH;
        let m = element / DEPTH;
        let lane = depth + k;
        let at = min(row + m, count - 1);
        let value = tile_input(buffers, norms, m, at, lane, part, comptime!(config.clone()));
        put(x_tile, k * STRIDE + m, value);
    }
}

/// Products go through shared memory, so that units take pairs of lanes in turn.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    tile: &Shared<[f32]>,
    sums: &Array<f32>,
    count: u32,
    row: u32,
    first: u32,
    end: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let parts = comptime!(unit.parts.len());
    let own_lane = (UNIT_POS % ACROSS) * SIDE as u32;
    let own_row = (UNIT_POS / ACROSS) * SIDE as u32;
    #[unroll]
    for i in 0..comptime!(parts * SIDE * SIDE) {
        let p = comptime!((i / (SIDE * SIDE)) as u32);
        let m = own_row + comptime!((i / SIDE % SIDE) as u32);
        let l = own_lane + comptime!((i % SIDE) as u32);
        put(tile, (p * ROWS + m) * LANES + l, sums[i]);
    }
    sync_cube();
    let mut task = UNIT_POS;
    while task < comptime!(ROWS * LANES / 2) {
        let m = task / comptime!(LANES / 2);
        let local = (task % comptime!(LANES / 2)) * 2;
        if row + m < count && first + local < end {
            let mut products = Array::<f32>::new(comptime!(parts * 2));
            #[unroll]
            for p in 0..parts {
                #[unroll]
                for side in 0..2usize {
                    let at = (comptime!(p as u32 * ROWS) + m) * LANES + local + side as u32;
                    products[comptime!(p * 2 + side)] = tile[at as usize];
                }
            }
            finish_pair(
                buffers,
                &products,
                row + m,
                first + local,
                end,
                comptime!(unit.clone()),
                comptime!(config.parts.len()),
                comptime!(config.adapters),
            );
        }
        task += UNITS;
    }
}
