//! Contraction for few rows: a team of units (a plane, where the target has them) makes a few lanes of a unit
//! for one row, striding over the weight rows by runs. Further rows of a small batch are further cubes, which
//! find the weights in the cache.
//!
//! A cube makes its input row once, a segment at a time, in shared memory, where lanes that units read together lie side by
//! side. Plain floats are read so too: a unit's run is several *chunks*, between which lie those of
//! its neighbours. Of blocks it takes two runs, which share bytes or a scale.

use super::contract::{ContractConfig, UnitConfig, finish_pair, lane_in_unit, scalar, tile_number};
use super::decode::{RUN, decode_chunks, run_product, run_total};
use super::delta::{entry, entry_of};
use super::env::{Buffers, bound};
use super::gemv_inputs::make_inputs;
use super::gemv_sums::{CubeMemory, share, share_squares};
use super::norms::{no_squares, norm_scale};
use cubecl::prelude::*;
use rusty_loader::Format;

/// Cubes: `(x * y >= tiles, z = rows)`.
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
    let row = CUBE_POS_Z;
    let tile = tile_number();
    let memory = CubeMemory::new(comptime!(config.clone()));
    if row < buffers.step[comptime!(config.rows)] {
        #[unroll]
        for u in 0..comptime!(config.units.len()) {
            let (inside, first) = lane_in_unit(
                &buffers,
                tile,
                comptime!(config.cube_lanes()),
                comptime!(config.clone()),
                u,
            );
            if inside {
                unit_tile(
                    &buffers,
                    &memory,
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
    share(memory, &mut sums, comptime!(config.clone()), count);
    finish(buffers, memory, row, first, end, config, unit);
}

/// Each unit's part of the products `sums[lane * parts + part]`.
#[cube]
fn accumulate(
    buffers: &Buffers<'_>,
    segment: &Shared<[f32]>,
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
    let inner = UNIT_POS % team;
    let blocks = comptime!(config.k.div_ceil(config.block()));
    let held = comptime!(config.segment() / config.block());
    let stride = comptime!(config.stride());
    let width = comptime!(config.width() as usize);
    let mut x = Array::<f32>::new(width);
    let mut block = 0u32.runtime();
    while block < blocks {
        let here = min(held.runtime(), blocks - block);
        make_inputs(
            buffers,
            segment,
            squares,
            row,
            block,
            here,
            comptime!(config.clone()),
        );
        sync_cube();
        for b in 0..here {
            #[unroll]
            for i in 0..width {
                let at = (b * comptime!(width as u32) + comptime!(i as u32)) * stride + inner;
                x[i] = segment[at as usize];
            }
            #[unroll]
            for p in 0..comptime!(unit.parts.len()) {
                part_products(
                    buffers,
                    sums,
                    &x,
                    row,
                    start,
                    end,
                    block + b,
                    comptime!(config.clone()),
                    comptime!(unit.clone()),
                    p,
                );
            }
        }
        if comptime!(blocks > held) {
            sync_cube();
        }
        block += held;
    }
}

/// Adds the products of the unit's runs of its team's block `block` with one part's weights.
#[cube]
fn part_products(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &Array<f32>,
    row: u32,
    start: u32,
    end: u32,
    block: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
    #[comptime] p: usize,
) {
    let parts = comptime!(unit.parts.len());
    let part = comptime!(config.parts[unit.parts[p]]);
    let first = buffers.args[comptime!(unit.arg + scalar::FIRST)];
    let gained = gained_inputs(
        buffers,
        x,
        row,
        block,
        comptime!(unit.parts[p] as u32),
        comptime!(config.clone()),
    );
    let runs = comptime!(config.runs() as usize);
    let mut totals = Array::<f32>::new(runs);
    #[unroll]
    for r in 0..runs {
        totals[r] = run_total(&gained, comptime!(r * RUN), comptime!(part.format));
    }
    #[unroll]
    for l in 0..comptime!(config.lanes as usize) {
        let lane = min(start + l as u32, end - 1);
        let address =
            buffers.args[comptime!(part.arg)] + (lane - first) * comptime!(part.row_bytes);
        let product = lane_product(
            buffers,
            address,
            &gained,
            &totals,
            block,
            comptime!(config.clone()),
            comptime!(part.format),
        );
        sums[comptime!(l * parts + p)] += product;
    }
}

/// The unit's inputs of its team's block `block`, as the row's adapter changes those of a part.
#[cube]
fn gained_inputs(
    buffers: &Buffers<'_>,
    x: &Array<f32>,
    row: u32,
    block: u32,
    #[comptime] part: u32,
    #[comptime] config: ContractConfig,
) -> Array<f32> {
    let team = comptime!(config.team_units());
    let chunk = comptime!(config.chunk());
    let inner = UNIT_POS % team;
    let width = comptime!(config.width() as usize);
    let mut gained = Array::<f32>::new(width);
    #[unroll]
    for i in 0..width {
        gained[i] = x[i];
    }
    if let Some(adapters) = comptime!(config.adapters) {
        let entry = entry_of(buffers, row, part.runtime(), adapters);
        let gain = buffers.pool[(entry + entry::GAIN_IN) as usize];
        if gain > 0 {
            #[unroll]
            for i in 0..width {
                let number = comptime!(i as u32 / chunk * team) + inner;
                let lane = block * comptime!(config.block())
                    + number * chunk
                    + comptime!(i as u32 % chunk);
                let lane = min(lane, comptime!(config.k - 1).runtime());
                gained[i] *= f32::reinterpret(buffers.pool[(gain + lane) as usize]);
            }
        }
    }
    gained
}

/// The product of the unit's runs of its team's block `block` with inputs, of which each run's sum is in `totals`.
#[cube]
fn lane_product(
    buffers: &Buffers<'_>,
    row: u32,
    x: &Array<f32>,
    totals: &Array<f32>,
    block: u32,
    #[comptime] config: ContractConfig,
    #[comptime] format: Format,
) -> f32 {
    let team = comptime!(config.team_units());
    let chunk = comptime!(config.chunk());
    let inner = UNIT_POS % team;
    let mut sum = 0.0f32;
    if comptime!(chunk < RUN as u32) {
        let mut w = Array::<f32>::new(RUN);
        decode_chunks(
            buffers,
            row,
            block * comptime!(config.block()) + inner * chunk,
            comptime!(team * chunk),
            &mut w,
            format,
            comptime!(chunk as usize),
            comptime!(config.is_wide()),
        );
        #[unroll]
        for i in 0..RUN {
            sum += w[i] * x[i];
        }
    } else {
        let mut unit = block * team + inner;
        if comptime!(!config.k.is_multiple_of(config.block())) {
            // Behind the row's end the last runs are read, times inputs of zero.
            unit = min(
                unit,
                comptime!(config.k.div_ceil(config.width()) - 1).runtime(),
            );
        }
        #[unroll]
        for r in 0..comptime!(config.runs()) {
            sum += run_product(
                buffers,
                row,
                unit * comptime!(config.runs()) + r,
                x,
                totals[comptime!(r as usize)],
                comptime!(r as usize * RUN),
                format,
                comptime!(config.k),
            );
        }
    }
    sum
}

/// Tails, one pair of lanes per unit.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    row: u32,
    first: u32,
    end: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let parts = comptime!(unit.parts.len());
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
