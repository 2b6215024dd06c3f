//! Contraction for few rows: a team of units (a plane, where the target has them) makes a few lanes of a unit
//! for one row, or for a few at once, striding over the weight rows by runs. Further rows of a small batch are further cubes,
//! which find the weights in the cache.
//!
//! A cube makes its input rows once, a segment at a time, in shared memory, where lanes that units read together lie side by
//! side. Plain floats are read so too: a unit's run is several *chunks*, between which lie those of
//! its neighbours. Of blocks it takes two runs, which share bytes or a scale.
//!
//! Blocks are multiplied [as bytes](super::gemv_bytes) where the device has an instruction for it.

use super::contract::{ContractConfig, finish_pair, lane_tile, scalar};
use super::env::{Buffers, bound};
use super::factors::segment_factors;
use super::gemv_ahead::{ask_ahead, await_earlier};
use super::gemv_order::{announce, await_all, leave};
use super::gemv_products::{add_products, span_of};
use super::gemv_sums::{CubeMemory, share, share_squares, total_at};
use super::norms::norm_scale;
use super::reduce::no_sums;
use super::shrink::{SHRINK_CUBES, shrink_row};
use super::sink::{Store, store_segment};
use super::unit_lanes::{AlikeUnits, Lanes, lanes_of_tile};
use cubecl::prelude::*;

/// Cubes: `(rows by their number in a cube, y * z >= tiles)`.
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
    let memory = CubeMemory::new(comptime!(config.clone()), 1u32);
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
/// before their tails, but not for ever. `counters` are zero before a launch and after it, `COUNTER_STRIDE` words for each number of the cubes' first
/// dimension.
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
    let memory = CubeMemory::new(comptime!(config.clone()), 1u32);
    let own = lane_tile();
    // Shares that this cube makes: one of the first its own, another none, or all that it waited for in vain. Others leave the same
    // there then.
    let mut share = own;
    let mut end = own + 1;
    if own >= cubes {
        let settings = comptime!(config.clone());
        half(&buffers, &memory, own - cubes, settings, Half::Products);
        let ranks = largest_rank(&buffers, comptime!(config.clone()));
        share = await_all(counters, cubes, own - cubes, ranks) / cubes * cubes;
        end = cubes.runtime();
    }
    while share < end {
        shrink_share(&buffers, share, comptime!(config.clone()));
        share += 1;
    }
    if own < cubes {
        announce(counters);
    } else {
        sync_storage();
        half(&buffers, &memory, own - cubes, config, Half::Tails);
    }
    leave(counters);
}

/// Ranks for which the arena has room.
#[cube]
fn largest_rank(buffers: &Buffers<'_>, #[comptime] config: ContractConfig) -> u32 {
    match comptime!(config.adapters) {
        Some(adapters) => buffers.args[comptime!(adapters.arg + 1)],
        None => 0u32.runtime(),
    }
}

/// A part of the first factor for the cube's rows: of a row, a part and some ranks.
#[cube]
fn shrink_share(buffers: &Buffers<'_>, number: u32, #[comptime] config: ContractConfig) {
    let (part, share) = (number / SHRINK_CUBES, number % SHRINK_CUBES);
    let (part, m) = (part / config.cube_rows, part % config.cube_rows);
    let row = CUBE_POS_X * config.cube_rows + m;
    if let Some(shrink) = comptime!(config.shrink()) {
        shrink_row(buffers, row, part, share, shrink);
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
    let row = CUBE_POS_X * config.cube_rows;
    if row < buffers.step[comptime!(config.rows)] {
        #[unroll]
        for a in 0..comptime!(config.alike().len()) {
            let (size, settings) = comptime!((config.cube_lanes(), config.clone()));
            let alike = comptime!(config.alike()[a].clone());
            let (inside, lanes) = lanes_of_tile(buffers, tile, size, settings, alike);
            if inside {
                let (settings, alike) = comptime!((config.clone(), config.alike()[a].clone()));
                match comptime!(which) {
                    Half::Products => {
                        tile_products(buffers, memory, row, tile, lanes, settings, alike);
                    }
                    Half::Tails => finish(buffers, memory, row, &lanes, settings, alike),
                }
            }
        }
    }
}

#[cube]
fn tile_products(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    row: u32,
    tile: u32,
    lanes: Lanes,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    let count = comptime!(config.sums(alike.parts.len()));
    let mut sums = no_sums(count);
    let mut squares = no_sums(comptime!(config.cube_rows as usize));
    if comptime!(config.ahead) {
        let (settings, alike) = comptime!((config.clone(), alike.clone()));
        ask_ahead(buffers, &lanes, settings, alike);
        // Cubes that wait for each other wait for others before.
        if comptime!(!config.shrinks) {
            await_earlier();
        }
    }
    let made = comptime!(config.first.clone());
    let factors = match made {
        Some(store) => make_first(buffers, row, tile, comptime!(config.clone()), store),
        None => Sequence::<f32>::new(),
    };
    let span = span_of(row, &lanes, factors);
    add_products(
        buffers,
        memory,
        &mut sums,
        &mut squares,
        &span,
        comptime!(config.clone()),
        alike,
    );
    if comptime!(config.prologue.late_norm().is_some()) {
        share_squares(memory, &squares, comptime!(config.clone()));
    }
    share(memory, &mut sums, config, count);
}

/// Stores the tile's lanes of what is made of a row first, and gives the factor of the norm in it.
#[cube]
fn make_first(
    buffers: &Buffers<'_>,
    row: u32,
    tile: u32,
    #[comptime] config: ContractConfig,
    #[comptime] store: Store,
) -> Sequence<f32> {
    let team = comptime!(config.team);
    let program = comptime!(store.program.clone());
    let factors = segment_factors(buffers, 0u32, row, 0u32, program, team);
    let none = Sequence::<f32>::new();
    let last = comptime!(config.units[config.units.len() - 1].arg);
    let tiles = buffers.args[comptime!(last + scalar::TILES)];
    // A pair for each unit.
    let lanes = comptime!(2 * config.team.units);
    let mut lane = tile * lanes;
    while lane < comptime!(config.k) {
        let end = min(lane + lanes, comptime!(config.k).runtime());
        let settings = comptime!(store.clone());
        store_segment(
            buffers, &none, &factors, 0u32, row, lane, end, settings, team,
        );
        lane += tiles * lanes;
    }
    factors
}

/// Tails, one pair of lanes of a row per unit.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    row: u32,
    lanes: &Lanes,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    let parts = comptime!(alike.parts.len());
    let pairs = comptime!(config.cube_lanes() / 2);
    let (m, local) = (UNIT_POS / pairs, UNIT_POS % pairs * 2);
    let own = row + m;
    let there = m < config.cube_rows && own < buffers.step[comptime!(config.rows)];
    if there && lanes.first + local < lanes.end {
        let mut squares = 0.0f32;
        if comptime!(config.prologue.late_norm().is_some()) {
            #[unroll]
            for team in 0..comptime!(config.teams()) {
                squares += memory.squares[(m * comptime!(config.teams()) + team) as usize];
            }
        }
        let scale = norm_scale(
            squares,
            comptime!(config.k),
            comptime!(config.prologue.clone()),
        );
        let mut products = Array::<f32>::new(comptime!(parts * 2));
        #[unroll]
        for side in 0..2usize {
            let at = total_at(m, local + side as u32, parts, comptime!(config.clone()));
            #[unroll]
            for p in 0..parts {
                let total = memory.totals[(at + comptime!(p as u32)) as usize];
                products[comptime!(p * 2 + side)] = total * scale;
            }
        }
        finish_pair(
            buffers,
            &mut products,
            own,
            lanes.first + local,
            lanes,
            comptime!(config.clone()),
            alike,
        );
    }
}
