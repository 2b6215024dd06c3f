//! The most likely token: the index of the largest lane, the lowest among equals.
//!
//! A row is shared among cubes, whose best the one that comes last looks through: one cube alone reads a vocabulary's row at a
//! fraction of what a device reads.

use super::arrivals::{is_last, reset};
use super::env::{Buffers, bound, put};
use crate::RowResult;
use cubecl::prelude::*;

/// Lanes that a unit reads at once.
const AT_ONCE: usize = 8;
/// What lanes have to be above to be chosen: those that are no numbers are not, nor is one that is this, which a CPU would choose.
const LOWEST: f32 = f32::MIN;

/// What an argmax kernel is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChooseConfig {
    /// Units of a cube, a power of two.
    pub units: u32,
    /// Header word of the row count.
    pub rows: usize,
    /// Lanes.
    pub width: u32,
    /// Cubes of a row, at most as many as units; several only where cubes see what others leave.
    pub cubes: u32,
    /// Scalars: arena word of the activation, and of where cubes leave their best.
    pub args: [usize; 2],
}

impl ChooseConfig {
    /// Words that the cubes of a row leave: a value and a place each.
    pub fn left_words(&self) -> u32 {
        match self.cubes {
            1 => 0,
            cubes => cubes * 2,
        }
    }
}

/// Cubes: `(rows, cubes of a row)`. Stores word `row` of the word buffer. `counters` are zero before and after.
#[cube(launch_unchecked)]
pub fn choose(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    counters: &[Atomic<u32>],
    args: Sequence<u32>,
    #[comptime] config: ChooseConfig,
) {
    // There are no adapters.
    let buffers = bound(weights, arena, vectors, step, words, step, args);
    let row = CUBE_POS_X;
    let values = Shared::<[f32]>::new_slice(comptime!(config.units as usize));
    let places = Shared::<[u32]>::new_slice(comptime!(config.units as usize));
    if row < buffers.step[comptime!(config.rows)] {
        let start = buffers.args[comptime!(config.args[0])] + row * config.width;
        let (highest, best) = own_best(&buffers, start, config);
        put(&values, UNIT_POS, highest);
        put(&places, UNIT_POS, best);
        best_of_cube(&values, &places, config);
        if comptime!(config.cubes == 1) {
            tell(&buffers, &values, &places, row);
        } else {
            meet(&buffers, &values, &places, counters, row, config);
        }
    }
}

/// Leaves a cube's best; the one that comes last finds the row's.
#[cube]
fn meet(
    buffers: &Buffers<'_>,
    values: &Shared<[f32]>,
    places: &Shared<[u32]>,
    counters: &[Atomic<u32>],
    row: u32,
    #[comptime] config: ChooseConfig,
) {
    let first = buffers.args[comptime!(config.args[1])] + row * comptime!(config.left_words());
    if UNIT_POS == 0 {
        let own = first + CUBE_POS_Y * 2;
        put(buffers.arena, own, values[0]);
        // Exact: vocabularies are far below 2^24. As bits it might be taken for a number too small to keep.
        put(buffers.arena, own + 1, f32::cast_from(places[0]));
    }
    if is_last(counters, row, config.cubes.runtime()) {
        // Units behind the last cube look at its best again, which is no other answer.
        let other = first + min(UNIT_POS, comptime!(config.cubes - 1).runtime()) * 2;
        put(values, UNIT_POS, buffers.arena[other as usize]);
        let place = u32::cast_from(buffers.arena[(other + 1) as usize]);
        put(places, UNIT_POS, place);
        best_of_cube(values, places, config);
        tell(buffers, values, places, row);
        reset(counters, row);
    }
}

/// Of what the units have put there, the best first.
#[cube]
fn best_of_cube(values: &Shared<[f32]>, places: &Shared<[u32]>, #[comptime] config: ChooseConfig) {
    sync_cube();
    #[unroll]
    for level in 0..comptime!(config.units.ilog2()) {
        let half = comptime!(config.units >> (level + 1));
        if UNIT_POS < half {
            let other = values[(UNIT_POS + half) as usize];
            let place = places[(UNIT_POS + half) as usize];
            let own = values[UNIT_POS as usize];
            let tie = other == own && place < places[UNIT_POS as usize];
            if other > own || tie {
                put(values, UNIT_POS, other);
                put(places, UNIT_POS, place);
            }
        }
        sync_cube();
    }
}

/// Stores what is first as the row's.
#[cube]
fn tell(buffers: &Buffers<'_>, values: &Shared<[f32]>, places: &Shared<[u32]>, row: u32) {
    if UNIT_POS == 0 {
        // Bits: compilers may assume that floats are finite.
        let bits = u32::reinterpret(values[0]);
        let mut pick = places[0];
        if bits & 0x7f80_0000 == 0x7f80_0000 || bits == comptime!(LOWEST.to_bits()).runtime() {
            pick = comptime!(RowResult::NO_TOKEN).runtime();
        }
        put(buffers.words, row, pick);
    }
}

/// The highest of the unit's lanes of a row that starts at word `start`, and the first of them that has it.
#[cube]
fn own_best(buffers: &Buffers<'_>, start: u32, #[comptime] config: ChooseConfig) -> (f32, u32) {
    // Behind the end the last lane is looked at again, which is no other answer.
    let last = comptime!(config.width - 1).runtime();
    let mut lane = CUBE_POS_Y * config.units + UNIT_POS;
    let mut best = min(lane, last);
    let mut highest = LOWEST.runtime();
    while lane < config.width {
        // All are asked for before the first is needed.
        let mut read = Array::<f32>::new(AT_ONCE);
        #[unroll]
        for i in 0..AT_ONCE {
            let at = min(
                lane + comptime!(i as u32 * config.units * config.cubes),
                last,
            );
            read[i] = buffers.arena[(start + at) as usize];
        }
        #[unroll]
        for i in 0..AT_ONCE {
            if read[i] > highest {
                highest = read[i];
                best = min(
                    lane + comptime!(i as u32 * config.units * config.cubes),
                    last,
                );
            }
        }
        lane += comptime!(AT_ONCE as u32 * config.units * config.cubes);
    }
    (highest, best)
}
