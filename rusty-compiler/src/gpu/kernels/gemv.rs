//! Contraction for few rows: a team of units (a plane, where the target has them) makes a few lanes of a unit
//! for one row, striding over the weight rows by runs. Further rows of a small batch are further cubes, which
//! find the weights in the cache.
//!
//! A cube makes its input row once, a segment at a time, in shared memory, where lanes that units read together lie side by
//! side. Plain floats are read so too: a unit's run is several *chunks*, between which lie those of
//! its neighbours.

use super::contract::{ContractConfig, UnitConfig, finish_pair, lane_in_unit, tile_number};
use super::decode::{RUN, decode_chunks, run_product, run_total};
use super::delta::entry_of;
use super::env::{Buffers, bound, is_cuda, put};
use super::gemv_inputs::make_inputs;
use super::norms::norm_scale;
use super::reduce::{plane_total, plane_totals};
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

/// Shared memory of a cube, whichever unit it works in.
#[derive(CubeType)]
struct CubeMemory {
    /// The input row, a segment of it.
    segment: Shared<[f32]>,
    /// Sums of teams, `[team][sum]`.
    totals: Shared<[f32]>,
    /// Sums of units, where the target has no planes.
    partial: Shared<[f32]>,
    /// Each team's part of the squares of the input row.
    squares: Shared<[f32]>,
}

#[cube]
impl CubeMemory {
    fn new(#[comptime] config: ContractConfig) -> Self {
        CubeMemory {
            segment: Shared::<[f32]>::new_slice(comptime!(config.segment_words())),
            totals: Shared::<[f32]>::new_slice(comptime!(config.total_words())),
            partial: Shared::<[f32]>::new_slice(comptime!(config.partial_words())),
            squares: Shared::<[f32]>::new_slice(comptime!(config.teams() as usize)),
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
    let end = buffers.args[comptime!(unit.arg + 1)];
    let mut sums = Array::<f32>::new(count);
    let mut squares = Array::<f32>::new(1usize);
    squares[0] = 0.0f32.runtime();
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
    let first = buffers.args[comptime!(unit.arg)];
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
        let entry = entry_of(
            buffers,
            row,
            comptime!(unit.parts[p] as u32).runtime(),
            adapters,
        );
        let gain = buffers.pool[(entry + 4) as usize];
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

/// Sums over each team, into shared memory.
#[cube]
fn share(
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    #[comptime] config: ContractConfig,
    #[comptime] count: usize,
) {
    let (totals, partial) = (&memory.totals, &memory.partial);
    let size = comptime!(config.team_units());
    let team = UNIT_POS / size;
    let inner = UNIT_POS % size;
    let alike = comptime!(count.is_power_of_two() && count <= size as usize);
    let cuda = is_cuda();
    if comptime!(config.team.plane > 0 && alike && cuda) {
        let each = comptime!(size / count as u32);
        let total = plane_totals(sums, count, size);
        if inner.is_multiple_of(each) {
            put(totals, team * comptime!(count as u32) + inner / each, total);
        }
    } else if comptime!(config.team.plane > 0) {
        #[unroll]
        for i in 0..count {
            let total = plane_total(sums[i], size);
            if inner == 0 {
                put(totals, team * comptime!(count as u32) + i as u32, total);
            }
        }
    } else {
        #[unroll]
        for i in 0..count {
            let total = shared_total(partial, sums[i], size);
            if inner == 0 {
                put(totals, team * comptime!(count as u32) + i as u32, total);
            }
        }
    }
    sync_cube();
}

/// Each team's sum of squares, into shared memory.
#[cube]
fn share_squares(memory: &CubeMemory, squares: f32, #[comptime] config: ContractConfig) {
    let size = comptime!(config.team_units());
    let total = if comptime!(config.team.plane > 0) {
        plane_total(squares, size)
    } else {
        shared_total(&memory.partial, squares, size)
    };
    if UNIT_POS.is_multiple_of(size) {
        put(&memory.squares, UNIT_POS / size, total);
    }
}

/// Sum over a team of `size` units in shared memory; its first unit gets it.
#[cube]
fn shared_total(partial: &Shared<[f32]>, value: f32, #[comptime] size: u32) -> f32 {
    let inner = UNIT_POS % size;
    put(partial, UNIT_POS, value);
    sync_cube();
    #[unroll]
    for step in 0..comptime!(size.ilog2()) {
        let half = comptime!(size >> (step + 1));
        if inner < half {
            let other = partial[(UNIT_POS + half) as usize];
            put(partial, UNIT_POS, partial[UNIT_POS as usize] + other);
        }
        sync_cube();
    }
    let total = partial[(UNIT_POS - inner) as usize];
    sync_cube();
    total
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
