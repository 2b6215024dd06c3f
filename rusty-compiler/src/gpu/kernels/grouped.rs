//! Products with experts for many rows (a grouped gemm): a cube takes the lanes of one [`TILE`] of one expert and the rows that
//! take it, whose numbers it gathers from the routes, [`ROWS`] at a time. So each weight is
//! read and dequantized once for [`ROWS`] rows, and an expert that no row takes is not read.
//!
//! A row's products lie in the order of its places, and [what becomes of them](super::expert_results) adds them in that order: among
//! steps that run this kernel, a result does not depend on the rows beside it. Limits: one part of a kernel a launch; barriers lie in loops whose length comes from shared
//! memory; it is the same for all units of a cube, which strict analyses of uniformity (DX12's older compiler) may not see.

use super::contract::tile_number;
use super::env::{Buffers, bound, put};
use super::experts::{ExpertsConfig, scalar};
use super::tile::{
    QUAD, Quad, SIDE, TileShape, UNITS, WeightRows, load_weights, multiply, own_lane, own_row,
};
use cubecl::prelude::*;
use rusty_loader::Format;

/// What the kernel is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupedConfig {
    /// Which products.
    pub experts: ExpertsConfig,
    /// Format of all experts of the launch's part, which is the first of its scalars.
    pub format: Format,
    /// Stored bytes of a row of an expert.
    pub row_bytes: u32,
}

/// The tile: all units have sums of their own.
pub const TILE: TileShape = TileShape::MIDDLE;
/// Rows of it.
pub const ROWS: u32 = TILE.rows;
/// Elements of a row in shared memory at once, and from one row there to the next in quads.
const DEPTH: u32 = TILE.depth();
const STRIDE: u32 = TILE.stride();
/// Most products that are gathered at once: what is left of a tile, and one row of each unit.
const GATHERED: u32 = ROWS + UNITS;

/// Cubes: `(x * y >= tiles, z = experts)`.
#[cube(launch_unchecked)]
pub fn grouped(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: GroupedConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let x_tile = Shared::<[Quad]>::new_slice(comptime!((ROWS * STRIDE) as usize));
    let w_tile = Shared::<[Quad]>::new_slice(comptime!((TILE.lanes * STRIDE) as usize));
    let products = Shared::<[u32]>::new_slice(comptime!(GATHERED as usize));
    let counts = Shared::<[u32]>::new_slice(comptime!(UNITS as usize));
    let rows = buffers.step[comptime!(config.experts.rows)];
    let lane = buffers.args[scalar::FIRST] + tile_number() * comptime!(TILE.lanes);
    if lane < buffers.args[scalar::END] {
        let mut row = 0u32;
        let mut have = 0u32;
        while row < rows || have > 0 {
            while row < rows && have < ROWS {
                have += gather(&buffers, &products, &counts, row, rows, have, config);
                row += UNITS;
            }
            if have > 0 {
                let count = min(have, ROWS);
                tile(&buffers, &x_tile, &w_tile, &products, count, lane, config);
                have -= count;
                drop_first(&products, have);
            }
        }
    }
}

/// Appends the products of this cube's expert among [`UNITS`] rows from `row` on, and returns how many they are.
#[cube]
fn gather(
    buffers: &Buffers<'_>,
    products: &Shared<[u32]>,
    counts: &Shared<[u32]>,
    row: u32,
    rows: u32,
    have: u32,
    #[comptime] config: GroupedConfig,
) -> u32 {
    let own = row + UNIT_POS;
    let mut taken = 0u32;
    let mut place = CUBE_POS_Z;
    if own < rows {
        if comptime!(config.experts.routed) {
            let routes = buffers.args[scalar::ROUTES] + own * comptime!(2 * config.experts.used);
            for j in 0..comptime!(config.experts.used) {
                if u32::cast_from(buffers.arena[(routes + j) as usize]) == CUBE_POS_Z {
                    place = j;
                    taken = 1u32;
                }
            }
        } else {
            taken = 1u32;
        }
    }
    put(counts, UNIT_POS, taken);
    sync_cube();
    // A running sum, in steps of doubled distance.
    #[unroll]
    for step in 0..comptime!(UNITS.ilog2()) {
        let distance = comptime!(1u32 << step);
        let mut sum = counts[UNIT_POS as usize];
        if UNIT_POS >= distance {
            sum += counts[(UNIT_POS - distance) as usize];
        }
        sync_cube();
        put(counts, UNIT_POS, sum);
        sync_cube();
    }
    if taken > 0 {
        let at = have + counts[UNIT_POS as usize] - 1;
        put(products, at, own * comptime!(config.experts.used) + place);
    }
    let all = counts[comptime!((UNITS - 1) as usize)];
    sync_cube();
    all
}

/// Moves the `left` products behind the first [`ROWS`] to the front.
#[cube]
fn drop_first(products: &Shared<[u32]>, left: u32) {
    let moved = products[(ROWS + UNIT_POS) as usize];
    sync_cube();
    if UNIT_POS < left {
        put(products, UNIT_POS, moved);
    }
    sync_cube();
}

/// The first `count` gathered products, lanes from `lane` on.
#[cube]
fn tile(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[Quad]>,
    w_tile: &Shared<[Quad]>,
    products: &Shared<[u32]>,
    count: u32,
    lane: u32,
    #[comptime] config: GroupedConfig,
) {
    let first = buffers.args[scalar::FIRST];
    let end = buffers.args[scalar::END];
    let stride = buffers.args[comptime!(scalar::stride(0))];
    let expert = buffers.args[comptime!(scalar::rows(0))] + CUBE_POS_Z * stride;
    let mut sums = Array::<f32>::new(comptime!(SIDE * SIDE));
    let mut depth = 0u32;
    while depth < config.experts.k {
        load_inputs(buffers, x_tile, products, count, depth, config);
        load_weights::<f32>(
            buffers,
            w_tile,
            expert + (lane - first) * comptime!(config.row_bytes),
            end - lane,
            depth,
            comptime!(WeightRows {
                format: config.format,
                row_bytes: config.row_bytes,
                k: config.experts.k,
            }),
            TILE,
        );
        sync_cube();
        multiply::<f32>(x_tile, w_tile, &mut sums, 0usize, TILE);
        sync_cube();
        depth += DEPTH;
    }
    let out = buffers.args[scalar::OUT];
    #[unroll]
    for i in 0..comptime!(SIDE * SIDE) {
        let m = own_row(comptime!(i / SIDE), TILE);
        let l = lane + own_lane(comptime!(i % SIDE), TILE);
        if m < count && l < end {
            let product = products[m as usize];
            let (used, n) = comptime!((config.experts.used, config.experts.n));
            let row = product / used * comptime!(config.experts.row_lanes());
            put(buffers.arena, out + row + product % used * n + l, sums[i]);
        }
    }
}

/// Input tile, `[product][quad]`; zero past the row's end.
#[cube]
fn load_inputs(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[Quad]>,
    products: &Shared<[u32]>,
    count: u32,
    depth: u32,
    #[comptime] config: GroupedConfig,
) {
    let x = buffers.args[scalar::X];
    for i in 0..comptime!(ROWS * DEPTH / QUAD / UNITS) {
        let element = UNIT_POS + i * UNITS;
        let q = element % comptime!(DEPTH / QUAD);
        let m = element / comptime!(DEPTH / QUAD);
        let lane = depth + q * QUAD;
        let product = products[min(m, count - 1) as usize];
        let input = match comptime!(config.experts.inputs_per_row() > 1) {
            true => product,
            false => product / comptime!(config.experts.used),
        };
        let mut quad = Quad::empty();
        #[unroll]
        for i in 0..comptime!(QUAD as usize) {
            let mut value = 0.0f32;
            if lane + (i as u32) < config.experts.k {
                let row = x + input * config.experts.k;
                value = buffers.arena[(row + lane + i as u32) as usize];
            }
            quad.insert(i, value);
        }
        put(x_tile, m * STRIDE + q, quad);
    }
}
