//! Contraction for many rows: a cube makes a [tile](super::tile) of rows by lanes of a unit, dequantizing each weight
//! once per tile into shared memory.

use super::body::evaluate;
use super::contract::{
    ContractConfig, UnitConfig, finish_pair, lane_in_unit, tile_input, tile_number,
};
use super::env::{Buffers, bound, put};
use super::tile::{
    DEPTH, LANES, QUAD, Quad, ROWS, SIDE, STRIDE, TILE_WORDS, UNITS, WeightRows, load_weights,
    multiply, own_lane, own_row,
};
use cubecl::prelude::*;

impl ContractConfig {
    /// Floats of all parts' products of half of a tile's rows.
    fn product_floats(&self) -> usize {
        self.most_parts() * (ROWS / 2 * LANES) as usize
    }

    /// Bytes of shared memory of the tiled kernel.
    pub fn tile_bytes(&self) -> u32 {
        4 * (TILE_WORDS + UNITS) + 4 * self.product_floats() as u32
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
    let x_tile = Shared::<[Quad]>::new_slice(comptime!((ROWS * STRIDE) as usize));
    let w_tile = Shared::<[Quad]>::new_slice(comptime!((LANES * STRIDE) as usize));
    let products = Shared::<[f32]>::new_slice(comptime!(config.product_floats()));
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
    finish(
        buffers, products, &sums, count, row, first, end, config, unit,
    );
}

/// Input tile, `[row][quad]`; zero past the row's end.
#[cube]
fn load_inputs(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[Quad]>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    depth: u32,
    #[comptime] config: ContractConfig,
    #[comptime] part: usize,
) {
    for i in 0..comptime!(ROWS * DEPTH / QUAD / UNITS) {
        let element = UNIT_POS + i * UNITS;
        let q = element % comptime!(DEPTH / QUAD);
        let m = element / comptime!(DEPTH / QUAD);
        let at = min(row + m, count - 1);
        let mut quad = Quad::empty();
        #[unroll]
        for i in 0..comptime!(QUAD as usize) {
            let lane = depth + q * QUAD + i as u32;
            let value = tile_input(buffers, norms, m, at, lane, part, comptime!(config.clone()));
            quad.insert(i, value);
        }
        put(x_tile, m * STRIDE + q, quad);
    }
}

/// Products go through shared memory, half of the rows at a time, so that units take pairs of lanes in turn.
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
                let mut products = Array::<f32>::new(comptime!(parts * 2));
                #[unroll]
                for p in 0..parts {
                    #[unroll]
                    for side in 0..2usize {
                        let from = (comptime!(p as u32 * ROWS / 2) + m) * LANES + local;
                        products[comptime!(p * 2 + side)] = tile[(from + side as u32) as usize];
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
