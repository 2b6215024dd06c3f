//! The first factor of [adapters](super::delta): `u = scale (A x)` for rows and parts of a contraction, in a launch of its own or
//! [in the contraction's](super::gemv::gemv_shrinking()) or that which [packs its inputs](super::packed_inputs).

use super::body::{Program, evaluate};
use super::delta::{
    Adapters, BF16, F16, FORMAT_MASK, INT8, TABLE_FORMATS, a_value, entry, entry_of,
};
use super::env::{Buffers, bound, put};
use super::factors::segment_factors;
use super::reduce::{Team, team_sum};
use cubecl::prelude::*;

/// What a shrink kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShrinkConfig {
    /// How units work together.
    pub team: Team,
    /// Input width.
    pub k: u32,
    /// Makes the input row.
    pub prologue: Program,
    /// Tables.
    pub adapters: Adapters,
}

/// Cubes of one row and part: `z` of them share its ranks.
pub const SHRINK_CUBES: u32 = 4;
/// Ranks that a cube of a shrink makes at a time.
const RANKS: usize = 4;
/// Lanes that a unit of one takes at a time, as memory's answers are waited for once for all of them; of formats that tables are seldom
/// in it takes one, or texts would be long.
const fn at_once(format: u32) -> usize {
    match format {
        F16 | BF16 | INT8 => 4,
        _ => 1,
    }
}

/// Cubes: `(rows, parts, SHRINK_CUBES)`.
#[cube(launch_unchecked)]
pub fn shrink(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: ShrinkConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    shrink_row(&buffers, CUBE_POS_X, CUBE_POS_Y, CUBE_POS_Z, config);
}

/// Share `share` of a row's ranks for a part. All units of the cube must call it together.
#[cube]
pub fn shrink_row(
    buffers: &Buffers<'_>,
    row: u32,
    part: u32,
    share: u32,
    #[comptime] config: ShrinkConfig,
) {
    if row < buffers.step[comptime!(config.adapters.rows)] {
        let entry = entry_of(buffers, row, part, comptime!(config.adapters));
        let rank = buffers.pool[entry as usize];
        if rank > share * RANKS as u32 {
            let factors = segment_factors(
                buffers,
                0u32,
                row,
                0u32,
                comptime!(config.prologue.clone()),
                comptime!(config.team),
            );
            let mut first = share * RANKS as u32;
            while first < rank {
                shrink_ranks(
                    buffers,
                    &factors,
                    row,
                    part,
                    entry,
                    first,
                    rank,
                    comptime!(config.clone()),
                );
                first += comptime!(SHRINK_CUBES * RANKS as u32);
            }
        }
    }
}

#[cube]
fn shrink_ranks(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    row: u32,
    part: u32,
    entry: u32,
    first: u32,
    rank: u32,
    #[comptime] config: ShrinkConfig,
) {
    let table = buffers.pool[(entry + entry::A) as usize];
    let format = buffers.pool[(entry + entry::FORMATS) as usize] & FORMAT_MASK;
    let mut sums = Array::<f32>::new(RANKS);
    #[unroll]
    for i in 0..RANKS {
        sums[i] = 0.0f32.runtime();
    }
    if table == 0 {
        // The identity: one unit has the lane.
        #[unroll]
        for i in 0..RANKS {
            let lane = min(first + i as u32, comptime!(config.k - 1).runtime());
            if UNIT_POS == 0 {
                sums[i] = input(buffers, factors, row, lane, comptime!(config.clone()));
            }
        }
    } else {
        #[unroll]
        for known in 0..TABLE_FORMATS {
            if format == known {
                let settings = comptime!(config.clone());
                add_products(
                    buffers, factors, &mut sums, row, table, first, rank, settings, known,
                );
            }
        }
    }
    let scales = buffers.pool[(entry + entry::SCALE) as usize];
    let u = buffers.args[comptime!(config.adapters.arg)]
        + (row * comptime!(config.adapters.parts) + part)
            * buffers.args[comptime!(config.adapters.arg + 1)];
    #[unroll]
    for i in 0..RANKS {
        let total = team_sum(sums[i], comptime!(config.team));
        let r = first + i as u32;
        if UNIT_POS == 0 && r < rank {
            let scale = f32::reinterpret(buffers.pool[(scales + r) as usize]);
            put(buffers.arena, u + r, total * scale);
        }
    }
}

/// Adds the unit's part of the products of a row with ranks of a table.
#[cube]
fn add_products(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    sums: &mut Array<f32>,
    row: u32,
    table: u32,
    first: u32,
    rank: u32,
    #[comptime] config: ShrinkConfig,
    #[comptime] format: u32,
) {
    let units = comptime!(config.team.units);
    let lanes = comptime!(at_once(format));
    let last = comptime!(config.k - 1).runtime();
    let mut lane = UNIT_POS;
    while lane < config.k {
        let mut x = Array::<f32>::new(lanes);
        #[unroll]
        for i in 0..lanes {
            let own = lane + comptime!(i as u32 * units);
            let inside = min(own, last);
            let value = input(buffers, factors, row, inside, comptime!(config.clone()));
            x[i] = select(own <= last, value, 0.0f32);
        }
        #[unroll]
        for n in 0..RANKS {
            let r = min(first + n as u32, rank - 1);
            #[unroll]
            for i in 0..lanes {
                let own = min(lane + comptime!(i as u32 * units), last);
                sums[n] += a_value(buffers.pool, table, r, own, config.k, format) * x[i];
            }
        }
        lane += comptime!(lanes as u32 * units);
    }
}

/// What the contraction multiplies at a lane.
#[cube]
fn input(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    row: u32,
    lane: u32,
    #[comptime] config: ShrinkConfig,
) -> f32 {
    let results = Sequence::<f32>::new();
    let last = comptime!(config.prologue.insts.len() - 1);
    let program = comptime!(config.prologue.clone());
    evaluate(buffers, &results, factors, 0u32, row, lane, program, last)
}
