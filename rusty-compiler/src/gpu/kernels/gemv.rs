//! Contraction for few rows: a team of units (a plane, where the target has them) makes a few lanes of a unit
//! for one row, striding over the weight rows by runs. Further rows of a small batch are further cubes, which
//! find the weights in the cache.
//!
//! A cube makes its input row once, a segment at a time, in shared memory, where lanes that units read together lie side by
//! side. Plain floats are read so too: a unit's run is several *chunks*, between which lie those of
//! its neighbours. Of blocks it takes two runs, which share bytes or a scale.
//!
//! Blocks are multiplied [as bytes](super::gemv_bytes) where the device has an instruction for it.

use super::contract::{ContractConfig, UnitConfig, finish_pair, lane_in_unit, lane_tile, scalar};
use super::env::{Buffers, bound};
use super::gemv_bytes::{byte_block, gained_parts, load_bytes, make_bytes};
use super::gemv_floats::{float_block, load_floats};
use super::gemv_inputs::make_inputs;
use super::gemv_order::{announce, await_all, leave};
use super::gemv_place::Place;
use super::gemv_sums::{CubeMemory, share, share_squares};
use super::norms::{no_squares, norm_scale};
use super::shrink::{SHRINK_CUBES, shrink_row};
use cubecl::prelude::*;

/// Cubes: `(rows, y * z >= tiles)`.
#[cube(launch_unchecked)]
pub fn gemv(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: ContractConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let tile = lane_tile();
    let memory = CubeMemory::new(comptime!(config.clone()));
    half(
        &buffers,
        &memory,
        tile,
        comptime!(config.clone()),
        Half::Products,
    );
    half(&buffers, &memory, tile, config, Half::Tails);
}

/// [`gemv()`] with adapters whose [first factor](shrink_row()) its first cubes make, while the others multiply weights: those wait
/// before their tails. `counters` are zero before a launch and after it, `COUNTER_STRIDE` words for each row.
#[cube(launch_unchecked)]
pub fn gemv_shrinking(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    counters: &[Atomic<u32>],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: ContractConfig,
) {
    // No tail stores keys or values.
    let buffers = bound(weights, arena, vectors, step, step, pool, args);
    let cubes = comptime!(config.shrink_cubes());
    let own = lane_tile();
    if own < cubes {
        let (part, share) = (own / SHRINK_CUBES, own % SHRINK_CUBES);
        if let Some(shrink) = comptime!(config.shrink()) {
            shrink_row(&buffers, CUBE_POS_X, part, share, shrink);
        }
        announce(counters);
        leave(counters);
    } else {
        let tile = own - cubes;
        let memory = CubeMemory::new(comptime!(config.clone()));
        half(
            &buffers,
            &memory,
            tile,
            comptime!(config.clone()),
            Half::Products,
        );
        await_all(counters, cubes);
        half(
            &buffers,
            &memory,
            tile,
            comptime!(config.clone()),
            Half::Tails,
        );
        leave(counters);
    }
}

/// What is done with a tile's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Half {
    /// Their products, into shared memory.
    Products,
    /// What tails make of those.
    Tails,
}

/// One half of a tile's work, in the unit in which it lies.
#[cube]
fn half(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    tile: u32,
    #[comptime] config: ContractConfig,
    #[comptime] which: Half,
) {
    let row = CUBE_POS_X;
    if row < buffers.step[comptime!(config.rows)] {
        #[unroll]
        for u in 0..comptime!(config.units.len()) {
            let lanes = comptime!(config.cube_lanes());
            let settings = comptime!(config.clone());
            let (inside, first) = lane_in_unit(buffers, tile, lanes, settings, u);
            if inside {
                let unit = comptime!(config.units[u].clone());
                let settings = comptime!(config.clone());
                match comptime!(which) {
                    Half::Products => {
                        unit_products(buffers, memory, row, first, settings, unit);
                    }
                    Half::Tails => finish(buffers, memory, row, first, settings, unit),
                }
            }
        }
    }
}

#[cube]
fn unit_products(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    row: u32,
    first: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let count = comptime!(config.lanes as usize * unit.parts.len());
    let end = buffers.args[comptime!(unit.arg + scalar::END)];
    let mut sums = Array::<f32>::new(count);
    let mut squares = no_squares(1usize);
    accumulate(
        buffers,
        &memory.segment,
        &mut sums,
        &mut squares,
        row,
        first,
        end,
        comptime!(config.clone()),
        comptime!(unit.clone()),
    );
    if comptime!(config.prologue.late_norm().is_some()) {
        share_squares(memory, squares[0], comptime!(config.clone()));
    }
    share(memory, &mut sums, config, count);
}

/// Each unit's part of the products `sums[lane * parts + part]`.
#[cube]
fn accumulate(
    buffers: &Buffers<'_>,
    segment: &Shared<[u32]>,
    sums: &mut Array<f32>,
    squares: &mut Array<f32>,
    row: u32,
    first: u32,
    end: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let team = comptime!(config.team_units());
    let start = first + (UNIT_POS / team) * config.lanes;
    let blocks = comptime!(config.k.div_ceil(config.block()));
    let held = comptime!(config.segment() / config.block());
    let gained = gained_parts(
        buffers,
        row,
        comptime!(config.clone()),
        comptime!(unit.clone()),
    );
    let mut block = 0u32.runtime();
    while block < blocks {
        let here = min(held.runtime(), blocks - block);
        let settings = comptime!(config.clone());
        if comptime!(config.bytes) {
            make_bytes(buffers, segment, squares, row, block, here, settings);
        } else {
            make_inputs(buffers, segment, squares, row, block, here, settings);
        }
        sync_cube();
        for b in 0..here {
            let place = Place {
                row,
                start,
                end,
                block: block + b,
            };
            let settings = comptime!(config.clone());
            let unit = comptime!(unit.clone());
            if comptime!(config.bytes) {
                let x = load_bytes(segment, b, comptime!(config.clone()));
                byte_block(buffers, sums, &x, &gained, &place, settings, unit);
            } else {
                let x = load_floats(segment, b, comptime!(config.clone()));
                float_block(buffers, sums, &x, &place, settings, unit);
            }
        }
        if comptime!(blocks > held) {
            sync_cube();
        }
        block += held;
    }
}

/// Tails, one pair of lanes per unit.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    row: u32,
    first: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let parts = comptime!(unit.parts.len());
    let end = buffers.args[comptime!(unit.arg + scalar::END)];
    let local = UNIT_POS * 2;
    let mut squares = 0.0f32;
    if comptime!(config.prologue.late_norm().is_some()) {
        #[unroll]
        for team in 0..comptime!(config.teams()) {
            squares += memory.squares[team as usize];
        }
    }
    let scale = norm_scale(
        squares,
        comptime!(config.k),
        comptime!(config.prologue.clone()),
    );
    if local < comptime!(config.cube_lanes()) && first + local < end {
        let mut products = Array::<f32>::new(comptime!(parts * 2));
        #[unroll]
        for p in 0..parts {
            #[unroll]
            for side in 0..2usize {
                let at = (local + side as u32) * comptime!(parts as u32) + p as u32;
                products[comptime!(p * 2 + side)] = memory.totals[at as usize] * scale;
            }
        }
        finish_pair(
            buffers,
            &products,
            row,
            first + local,
            end,
            comptime!(unit.clone()),
            comptime!(config.parts.len()),
            comptime!(config.adapters),
        );
    }
}
