//! The most likely token: the index of the largest lane, the lowest among equals.

use super::env::{Buffers, bound, put};
use crate::RowResult;
use cubecl::prelude::*;

/// Lanes that a unit reads at once.
const AT_ONCE: usize = 8;

/// What an argmax kernel is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChooseConfig {
    /// Units of a cube, a power of two.
    pub units: u32,
    /// Header word of the row count.
    pub rows: usize,
    /// Lanes.
    pub width: u32,
    /// Scalar: arena word of the activation.
    pub arg: usize,
}

/// Cubes: `(rows)`. Stores word `row` of the word buffer.
#[cube(launch_unchecked)]
pub fn choose(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: ChooseConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let row = CUBE_POS_X;
    let values = Shared::<[f32]>::new_slice(comptime!(config.units as usize));
    let places = Shared::<[u32]>::new_slice(comptime!(config.units as usize));
    if row < buffers.step[comptime!(config.rows)] {
        let start = buffers.args[comptime!(config.arg)] + row * config.width;
        let (highest, best) = own_best(&buffers, start, config);
        put(&values, UNIT_POS, highest);
        put(&places, UNIT_POS, best);
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
                    put(&values, UNIT_POS, other);
                    put(&places, UNIT_POS, place);
                }
            }
            sync_cube();
        }
        if UNIT_POS == 0 {
            // The exponent's bits: compilers may assume that floats are finite.
            let exponent = u32::reinterpret(values[0]) & 0x7f80_0000;
            let mut pick = places[0];
            if exponent == 0x7f80_0000 {
                pick = comptime!(RowResult::NO_TOKEN).runtime();
            }
            put(buffers.words, row, pick);
        }
    }
}

/// The highest of the unit's lanes of a row that starts at word `start`, and the first of them that has it.
#[cube]
fn own_best(buffers: &Buffers<'_>, start: u32, #[comptime] config: ChooseConfig) -> (f32, u32) {
    // Behind the end the last lane is looked at again, which is no other answer.
    let last = comptime!(config.width - 1).runtime();
    let mut best = min(UNIT_POS, last);
    let mut highest = buffers.arena[(start + best) as usize];
    let mut lane = UNIT_POS;
    while lane < config.width {
        // All are asked for before the first is needed.
        let mut read = Array::<f32>::new(AT_ONCE);
        #[unroll]
        for i in 0..AT_ONCE {
            let at = min(lane + comptime!(i as u32 * config.units), last);
            read[i] = buffers.arena[(start + at) as usize];
        }
        #[unroll]
        for i in 0..AT_ONCE {
            if read[i] > highest {
                highest = read[i];
                best = min(lane + comptime!(i as u32 * config.units), last);
            }
        }
        lane += comptime!(AT_ONCE as u32 * config.units);
    }
    (highest, best)
}
