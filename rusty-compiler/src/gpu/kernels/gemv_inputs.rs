//! The input rows of [the matrix-vector kernel](super::gemv) in shared memory.

use super::contract::ContractConfig;
use super::env::{Buffers, put};
use super::gemv_place::cube_row;
use super::gemv_products::Span;
use super::norms::{input_at, input_pair};
use cubecl::prelude::*;

/// The inputs of a cube's rows from block `block` on, `here` blocks of them, each lane where its unit looks for it, from word `begin` of the
/// segment on: `[row][block][lane of the unit][unit]`. Their squares are added to `squares`.
#[cube]
pub fn make_inputs(
    buffers: &Buffers<'_>,
    segment: &Shared<[u32]>,
    squares: &mut Array<f32>,
    span: &Span<'_>,
    block: u32,
    here: u32,
    begin: u32,
    #[comptime] config: ContractConfig,
) {
    let team = comptime!(config.team_units());
    let lanes = comptime!(config.block());
    let chunk = comptime!(config.chunk());
    let stride = comptime!(config.stride());
    let mut lane = UNIT_POS;
    while lane < here * lanes {
        let number = lane % lanes / chunk;
        let of_unit = number / team * chunk + lane % chunk;
        let of_block = lane / lanes * comptime!(config.width()) + of_unit;
        let at = begin + of_block * stride + number % team;
        #[unroll]
        for m in 0..comptime!(config.cube_rows) {
            let own = cube_row(buffers, span.row, m, comptime!(config.clone()));
            let inside = block * lanes + lane;
            let (value, square) = input(
                buffers,
                &span.factors,
                own,
                inside,
                comptime!(config.clone()),
            );
            squares[m as usize] += square;
            let from = comptime!(m * config.segment_words());
            put(segment, from + at, u32::reinterpret(value));
        }
        lane += config.team.units;
    }
}

/// What is multiplied at a lane, and what it adds to the squares; zero past the row's end.
#[cube]
fn input(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    row: u32,
    lane: u32,
    #[comptime] config: ContractConfig,
) -> (f32, f32) {
    let whole = comptime!(config.k.is_multiple_of(config.block()));
    let inside = if comptime!(whole) {
        lane
    } else {
        min(lane, comptime!(config.k - 1).runtime())
    };
    let program = comptime!(config.prologue.clone());
    let (value, square) = input_at(buffers, factors, row, inside, program);
    if comptime!(whole) {
        (value, square)
    } else {
        let there = lane < config.k;
        (select(there, value, 0.0f32), select(there, square, 0.0f32))
    }
}

/// The same at `lane`, an even number, and the lane behind it.
#[cube]
pub fn input_pair_of(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    row: u32,
    lane: u32,
    #[comptime] config: ContractConfig,
) -> (f32, f32, f32) {
    let whole = comptime!(config.k.is_multiple_of(config.block()));
    let program = comptime!(config.prologue.clone());
    if comptime!(whole) {
        input_pair(buffers, factors, row, lane, program)
    } else {
        // Rows of blocks have an even number of lanes.
        let inside = min(lane, comptime!(config.k - 2).runtime());
        let (low, high, square) = input_pair(buffers, factors, row, inside, program);
        let there = lane < config.k;
        (
            select(there, low, 0.0f32),
            select(there, high, 0.0f32),
            select(there, square, 0.0f32),
        )
    }
}
