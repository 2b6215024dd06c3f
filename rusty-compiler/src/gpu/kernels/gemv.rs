//! Contraction for few rows: a team of units (a plane, where the target has them) makes a few lanes of a unit
//! for one row, striding over the weight rows by runs. Further rows of a small batch are further cubes, which
//! find the weights in the cache.

use super::body::evaluate;
use super::contract::{ContractConfig, UnitConfig, finish_pair, tile_number};
use super::decode::{RUN, decode_run};
use super::delta::entry_of;
use super::env::{Buffers, bound};
use super::rows::norm_factors;
use cubecl::prelude::*;

/// Units of a team where the target has no planes.
pub const SHARED_TEAM: u32 = 32;

impl ContractConfig {
    /// Units that share lanes.
    pub fn team_units(&self) -> u32 {
        match self.team.plane {
            0 => SHARED_TEAM.min(self.team.units),
            plane => plane.min(self.team.units),
        }
    }

    /// Teams of a cube.
    pub fn teams(&self) -> u32 {
        self.team.units / self.team_units()
    }

    /// Lanes of a cube.
    pub fn cube_lanes(&self) -> u32 {
        self.teams() * self.lanes
    }
}

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
    if row < buffers.step[comptime!(config.rows)] {
        #[unroll]
        for u in 0..comptime!(config.units.len()) {
            let arg = comptime!(config.units[u].arg);
            let before = if comptime!(u == 0) {
                0u32.runtime()
            } else {
                buffers.args[comptime!(config.units[u - 1].arg + 2)]
            };
            if tile >= before && tile < buffers.args[comptime!(arg + 2)] {
                let first = buffers.args[arg] + (tile - before) * comptime!(config.cube_lanes());
                unit_tile(
                    &buffers,
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
    row: u32,
    first: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let count = comptime!(config.lanes as usize * unit.parts.len());
    let end = buffers.args[comptime!(unit.arg + 1)];
    let mut sums = Array::<f32>::new(count);
    accumulate(
        buffers,
        &mut sums,
        row,
        first,
        end,
        comptime!(config.clone()),
        comptime!(unit.clone()),
    );
    let totals = share(&sums, comptime!(config.clone()), count);
    finish(buffers, totals, row, first, end, config, unit);
}

/// Each unit's part of the products `sums[lane * parts + part]`.
#[cube]
fn accumulate(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    row: u32,
    first: u32,
    end: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let results = Sequence::<f32>::new();
    let factors = norm_factors(
        buffers,
        0u32,
        row,
        0u32,
        comptime!(config.prologue.clone()),
        comptime!(config.team),
    );
    let team = comptime!(config.team_units());
    let start = first + (UNIT_POS / team) * config.lanes;
    let runs = comptime!(config.k.div_ceil(RUN as u32));
    let mut x = Array::<f32>::new(RUN);
    let mut run = UNIT_POS % team;
    while run < runs {
        #[unroll]
        for i in 0..RUN {
            let lane = run * RUN as u32 + i as u32;
            x[i] = input(
                buffers,
                &results,
                &factors,
                row,
                lane,
                comptime!(config.clone()),
            );
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
                run,
                comptime!(config.clone()),
                comptime!(unit.clone()),
                p,
            );
        }
        run += team;
    }
}

/// The prologue's value at a lane; zero past the row's end.
#[cube]
fn input(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    factors: &Sequence<f32>,
    row: u32,
    lane: u32,
    #[comptime] config: ContractConfig,
) -> f32 {
    let last = comptime!(config.prologue.insts.len() - 1);
    if comptime!((config.k as usize).is_multiple_of(RUN)) {
        evaluate(
            buffers,
            results,
            factors,
            0u32,
            row,
            lane,
            comptime!(config.prologue.clone()),
            last,
        )
    } else {
        let inside = min(lane, comptime!(config.k - 1).runtime());
        let value = evaluate(
            buffers,
            results,
            factors,
            0u32,
            row,
            inside,
            comptime!(config.prologue.clone()),
            last,
        );
        select(lane < config.k, value, 0.0f32)
    }
}

/// Adds a run's products with one part's weights.
#[cube]
fn part_products(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &Array<f32>,
    row: u32,
    start: u32,
    end: u32,
    run: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
    #[comptime] p: usize,
) {
    let parts = comptime!(unit.parts.len());
    let part = comptime!(config.parts[unit.parts[p]]);
    let first = buffers.args[comptime!(unit.arg)];
    let mut gained = Array::<f32>::new(RUN);
    #[unroll]
    for i in 0..RUN {
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
            for i in 0..RUN {
                let lane = min(
                    run * RUN as u32 + i as u32,
                    comptime!(config.k - 1).runtime(),
                );
                gained[i] *= f32::reinterpret(buffers.pool[(gain + lane) as usize]);
            }
        }
    }
    let mut w = Array::<f32>::new(RUN);
    #[unroll]
    for l in 0..comptime!(config.lanes as usize) {
        let lane = min(start + l as u32, end - 1);
        let address =
            buffers.args[comptime!(part.arg)] + (lane - first) * comptime!(part.row_bytes);
        decode_run(
            buffers,
            address,
            run,
            &mut w,
            comptime!(part.format),
            comptime!(config.k),
        );
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..RUN {
            sum += w[i] * gained[i];
        }
        sums[comptime!(l * parts + p)] += sum;
    }
}

/// Sums over each team, into shared memory: `[team][sum]`.
#[cube]
fn share(
    sums: &Array<f32>,
    #[comptime] config: ContractConfig,
    #[comptime] count: usize,
) -> Shared<[f32]> {
    let teams = comptime!(config.teams() as usize);
    let size = comptime!(config.team_units());
    let mut totals = Shared::<[f32]>::new_slice(comptime!(teams * count));
    let team = UNIT_POS / size;
    let inner = UNIT_POS % size;
    if comptime!(config.team.plane > 0) {
        #[unroll]
        for i in 0..count {
            let total = plane_sum(sums[i]);
            if inner == 0 {
                totals[(team * comptime!(count as u32) + i as u32) as usize] = total;
            }
        }
    } else {
        let mut partial = Shared::<[f32]>::new_slice(comptime!(config.team.units as usize));
        #[unroll]
        for i in 0..count {
            partial[UNIT_POS as usize] = sums[i];
            sync_cube();
            #[unroll]
            for step in 0..comptime!(size.ilog2()) {
                let half = comptime!(size >> (step + 1));
                if inner < half {
                    let other = partial[(UNIT_POS + half) as usize];
                    partial[UNIT_POS as usize] += other;
                }
                sync_cube();
            }
            if inner == 0 {
                totals[(team * comptime!(count as u32) + i as u32) as usize] =
                    partial[UNIT_POS as usize];
            }
            sync_cube();
        }
    }
    sync_cube();
    totals
}

/// Tails, one pair of lanes per unit.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    totals: Shared<[f32]>,
    row: u32,
    first: u32,
    end: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let parts = comptime!(unit.parts.len());
    let local = UNIT_POS * 2;
    if local < comptime!(config.cube_lanes()) && first + local < end {
        let mut products = Array::<f32>::new(comptime!(parts * 2));
        #[unroll]
        for p in 0..parts {
            #[unroll]
            for side in 0..2usize {
                let at = (local + side as u32) * comptime!(parts as u32) + p as u32;
                products[comptime!(p * 2 + side)] = totals[at as usize];
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
