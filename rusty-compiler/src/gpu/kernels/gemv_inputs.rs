//! The input row of [the matrix-vector kernel](super::gemv) in shared memory.

use super::body::evaluate;
use super::contract::ContractConfig;
use super::env::{Buffers, put};
use cubecl::prelude::*;

/// The input from block `block` on, `here` blocks of it, each lane where its unit looks for it: `[block][lane of the unit][unit]`.
#[cube]
pub fn make_inputs(
    buffers: &Buffers<'_>,
    segment: &Shared<[f32]>,
    factors: &Sequence<f32>,
    row: u32,
    block: u32,
    here: u32,
    #[comptime] config: ContractConfig,
) {
    let team = comptime!(config.team_units());
    let lanes = comptime!(config.block());
    let chunk = comptime!(config.chunk());
    let stride = comptime!(config.stride());
    let mut lane = UNIT_POS;
    while lane < here * lanes {
        let value = input(
            buffers,
            factors,
            row,
            block * lanes + lane,
            comptime!(config.clone()),
        );
        let number = lane % lanes / chunk;
        let of_unit = number / team * chunk + lane % chunk;
        put(
            segment,
            (lane / lanes * comptime!(config.width()) + of_unit) * stride + number % team,
            value,
        );
        lane += config.team.units;
    }
}

/// The prologue's value at a lane; zero past the row's end.
#[cube]
fn input(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    row: u32,
    lane: u32,
    #[comptime] config: ContractConfig,
) -> f32 {
    let results = Sequence::<f32>::new();
    let last = comptime!(config.prologue.insts.len() - 1);
    let inside = if comptime!(config.k.is_multiple_of(config.block())) {
        lane
    } else {
        min(lane, comptime!(config.k - 1).runtime())
    };
    let value = evaluate(
        buffers,
        &results,
        factors,
        0u32,
        row,
        inside,
        comptime!(config.prologue.clone()),
        last,
    );
    if comptime!(config.k.is_multiple_of(config.block())) {
        value
    } else {
        select(lane < config.k, value, 0.0f32)
    }
}
