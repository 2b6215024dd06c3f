//! The inputs of a contraction's rows in 16 bits, normed, made once by a launch before that on [matrix units](super::matrix), all of whose
//! tiles of lanes read them: tiles that made their own would read twice the bytes, norm each row again, and wait for it.
//!
//! With adapters its other cubes make their first factor, which tiles need, too.
//!
//! In half precision each row is scaled by a power of two that leaves its largest input just below what that ends at, so that none is
//! beyond it and few are below what it tells apart; products are scaled back.

use super::contract::{ContractConfig, TILE_DEPTH, tile_pair};
use super::env::{Buffers, bound, put};
use super::fragments::{Halves, packed};
use super::norms::norm_scale;
use super::reduce::{Team, team_largest, team_sum};
use super::shrink::{SHRINK_CUBES, ShrinkConfig, shrink_row};
use cubecl::prelude::*;

/// What a packing kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PackConfig {
    /// How units work together.
    pub team: Team,
    /// The contraction, without parts and units.
    pub contract: ContractConfig,
    /// Where the inputs lie.
    pub inputs: PackedInputs,
}

impl PackConfig {
    /// Cubes of a row: the first packs it; with adapters so many more make [their first factor](super::shrink).
    pub fn cubes(&self) -> u32 {
        1 + self.inputs.parts * self.shrink().map_or(0, |_| SHRINK_CUBES)
    }

    fn shrink(&self) -> Option<ShrinkConfig> {
        Some(ShrinkConfig {
            team: self.team,
            ..self.contract.shrink()?
        })
    }
}

/// Where packed inputs lie: rows of words that hold two inputs each, zeros up to a whole tile's depth, and in half precision the factor
/// on products behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedInputs {
    /// Scalar: arena word of the first.
    pub arg: usize,
    /// Inputs of a row.
    pub k: u32,
    /// Parts that have inputs of their own, which lie side by side: with adapters all, else one.
    pub parts: u32,
    /// What words hold.
    pub halves: Halves,
}

/// Words behind a row in half precision: a factor, and what keeps rows at multiples of four.
const FACTOR_WORDS: u32 = 4;

impl PackedInputs {
    /// Words of a part of a row of `k` inputs at most.
    pub fn most_words(k: u32) -> u64 {
        u64::from(k.next_multiple_of(TILE_DEPTH) / 2 + FACTOR_WORDS)
    }

    /// Words of a row's inputs.
    pub fn row_words(&self) -> u32 {
        self.k.next_multiple_of(TILE_DEPTH) / 2
    }

    /// Words from one part of a row to the next.
    pub fn stride(&self) -> u32 {
        self.row_words() + if self.halves.f16 { FACTOR_WORDS } else { 0 }
    }

    /// Words of a row with all of its parts.
    pub fn words(&self) -> u32 {
        self.parts * self.stride()
    }
}

/// Arena word at which the inputs of part `part` of a row start: those of all where there is one.
#[cube]
pub fn packed_row(
    buffers: &Buffers<'_>,
    row: u32,
    part: u32,
    #[comptime] inputs: PackedInputs,
) -> u32 {
    let start = buffers.args[inputs.arg] + row * comptime!(inputs.words());
    if comptime!(inputs.parts == 1) {
        start
    } else {
        start + part * comptime!(inputs.stride())
    }
}

/// Factor on the products of a row with part `part`.
#[cube]
pub fn packed_factor(
    buffers: &Buffers<'_>,
    row: u32,
    part: u32,
    #[comptime] inputs: PackedInputs,
) -> f32 {
    let at = packed_row(buffers, row, part, inputs) + comptime!(inputs.row_words());
    buffers.arena[at as usize]
}

/// Cubes: `(rows, cubes of a row)`.
#[cube(launch_unchecked)]
pub fn pack(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: PackConfig,
) {
    let count = step[comptime!(config.contract.rows)];
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let shrink = comptime!(config.shrink());
    if CUBE_POS_Y == 0 {
        if CUBE_POS_X < count {
            #[unroll]
            for part in 0..comptime!(config.inputs.parts) {
                pack_part(&buffers, CUBE_POS_X, part, comptime!(config.clone()));
            }
        }
    } else if let Some(shrink) = comptime!(shrink) {
        let number = CUBE_POS_Y - 1;
        let (part, share) = (number / SHRINK_CUBES, number % SHRINK_CUBES);
        shrink_row(&buffers, CUBE_POS_X, part, share, shrink);
    }
}

#[cube]
fn pack_part(
    buffers: &Buffers<'_>,
    row: u32,
    #[comptime] part: u32,
    #[comptime] config: PackConfig,
) {
    let inputs = comptime!(config.inputs);
    let normed = comptime!(config.contract.prologue.late_norm().is_some());
    let mut factor = 1.0f32.runtime();
    if comptime!(normed || inputs.halves.f16) {
        let (squares, largest) = survey(buffers, row, part, comptime!(config.clone()));
        let prologue = comptime!(config.contract.prologue.clone());
        if comptime!(normed) {
            let all = team_sum(squares, comptime!(config.team));
            factor = norm_scale(all, comptime!(inputs.k), prologue);
        }
        if comptime!(inputs.halves.f16) {
            let most = team_largest(largest, comptime!(config.team)) * factor;
            let (up, down) = powers(most);
            factor *= up;
            if UNIT_POS == 0 {
                let at = packed_row(buffers, row, part, inputs) + comptime!(inputs.row_words());
                put(buffers.arena, at, down);
            }
        }
    }
    let to = packed_row(buffers, row, part, inputs);
    let mut word = UNIT_POS;
    while word < comptime!(inputs.row_words()) {
        let (low, high, _square) = tile_pair(
            buffers,
            row,
            word * 2,
            comptime!(part).runtime(),
            comptime!(config.contract.clone()),
        );
        let both = packed(low * factor, high * factor, comptime!(inputs.halves));
        put(buffers.arena, to + word, f32::reinterpret(both));
        word += config.team.units;
    }
}

/// The sum of the squares of the unit's inputs for their norm, and the largest of them.
#[cube]
fn survey(
    buffers: &Buffers<'_>,
    row: u32,
    #[comptime] part: u32,
    #[comptime] config: PackConfig,
) -> (f32, f32) {
    let mut squares = 0.0f32;
    let mut largest = 0.0f32;
    let mut word = UNIT_POS;
    while word < comptime!(config.inputs.row_words()) {
        let (low, high, square) = tile_pair(
            buffers,
            row,
            word * 2,
            comptime!(part).runtime(),
            comptime!(config.contract.clone()),
        );
        squares += square;
        largest = max(largest, max(low.abs(), high.abs()));
        word += config.team.units;
    }
    (squares, largest)
}

/// A power of two that makes numbers up to `largest` at most 2^15, and its inverse.
#[cube]
fn powers(largest: f32) -> (f32, f32) {
    // Exponents as floats have them, of which both powers have one that is normal.
    let exponent = clamp(u32::reinterpret(largest) >> 23 & 0xff, 30u32, 255u32);
    let up = f32::reinterpret((268 - exponent) << 23);
    let down = f32::reinterpret((exponent - 14) << 23);
    (up, down)
}
