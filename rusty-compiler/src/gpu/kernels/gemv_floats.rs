//! Products of floats in [the matrix-vector kernel](super::gemv).

use super::contract::{ContractConfig, UnitConfig};
use super::decode::{RUN, decode_chunks, run_product, run_total};
use super::delta::{entry, entry_of};
use super::env::Buffers;
use super::gemv_place::{Place, row_address, unit_number};
use cubecl::prelude::*;
use rusty_loader::Format;

/// The unit's inputs of its team's block `b` of those in shared memory.
#[cube]
pub fn load_floats(
    segment: &Shared<[u32]>,
    b: u32,
    #[comptime] config: ContractConfig,
) -> Array<f32> {
    let inner = UNIT_POS % comptime!(config.team_units());
    let width = comptime!(config.width() as usize);
    let mut x = Array::<f32>::new(width);
    #[unroll]
    for i in 0..width {
        let lane = b * comptime!(width as u32) + comptime!(i as u32);
        x[i] = f32::reinterpret(segment[(lane * comptime!(config.stride()) + inner) as usize]);
    }
    x
}

/// Adds the products of the unit's runs of a block with all parts' weights.
#[cube]
pub fn float_block(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &Array<f32>,
    place: &Place,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    #[unroll]
    for p in 0..comptime!(unit.parts.len()) {
        let (settings, unit) = comptime!((config.clone(), unit.clone()));
        part_products(buffers, sums, x, place, settings, unit, p);
    }
}

/// Adds the products of the unit's runs of its team's block `block` with one part's weights.
#[cube]
pub fn part_products(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &Array<f32>,
    place: &Place,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
    #[comptime] p: usize,
) {
    let parts = comptime!(unit.parts.len());
    let part = comptime!(config.parts[unit.parts[p]]);
    let gained = gained_inputs(
        buffers,
        x,
        place.row,
        place.block,
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
        let address = row_address(buffers, place, comptime!(unit.arg), part, l);
        let product = lane_product(
            buffers,
            address,
            &gained,
            &totals,
            place.block,
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
        let unit = unit_number(block, comptime!(config.clone()));
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
