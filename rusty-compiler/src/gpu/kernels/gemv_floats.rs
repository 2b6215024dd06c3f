//! Products of floats in [the matrix-vector kernel](super::gemv).

use super::contract::ContractConfig;
use super::decode::{RUN, decode_chunks, dot, read_run, run_product, run_total};
use super::delta::{entry, entry_of};
use super::env::Buffers;
use super::gemv_place::{Place, cube_row, row_address, unit_number};
use super::gemv_products::Span;
use super::unit_lanes::AlikeUnits;
use cubecl::prelude::*;
use rusty_loader::Format;

/// The unit's inputs of its team's block `b` of those in shared memory, `[row][lane of the unit]`.
#[cube]
pub fn load_floats(
    segment: &Shared<[u32]>,
    b: u32,
    #[comptime] config: ContractConfig,
) -> Array<f32> {
    let inner = UNIT_POS % comptime!(config.team_units());
    let width = comptime!(config.width() as usize);
    let all = comptime!(config.cube_rows as usize * width);
    let mut x = Array::<f32>::new(all);
    #[unroll]
    for i in 0..all {
        let lane = b * comptime!(width as u32) + comptime!((i % width) as u32);
        let from = comptime!((i / width) as u32 * config.segment_words());
        let at = from + lane * comptime!(config.stride()) + inner;
        x[i] = f32::reinterpret(segment[at as usize]);
    }
    x
}

/// Adds the products of the unit's runs of a block with all parts' weights.
#[cube]
pub fn float_block(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &Array<f32>,
    span: &Span<'_>,
    place: &Place,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    #[unroll]
    for p in 0..comptime!(alike.parts.len()) {
        let (settings, alike) = comptime!((config.clone(), alike.clone()));
        part_products(buffers, sums, x, span, place, settings, alike, p);
    }
}

/// Adds the products of the unit's runs of a block with one part's weights. Each weight's value serves all rows.
#[cube]
fn part_products(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &Array<f32>,
    span: &Span<'_>,
    place: &Place,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
    #[comptime] p: usize,
) {
    let rows = comptime!(config.cube_rows as usize);
    let parts = comptime!(alike.parts.len());
    let part = comptime!(alike.parts[p]);
    let x = gained_inputs(buffers, x, span, place, p, comptime!(config.clone()));
    let runs = comptime!(rows * config.runs() as usize);
    let mut totals = Array::<f32>::new(runs);
    #[unroll]
    for r in 0..runs {
        totals[r] = run_total(&x, comptime!(r * RUN), comptime!(part.format));
    }
    #[unroll]
    for l in 0..comptime!(config.lanes as usize) {
        let mut products = Array::<f32>::new(rows);
        let row = row_address(span.lanes, place, part, p, l);
        let (settings, format) = comptime!((config.clone(), part.format));
        lane_products(
            buffers,
            &mut products,
            row,
            &x,
            &totals,
            place.block,
            settings,
            format,
        );
        #[unroll]
        for m in 0..rows {
            sums[comptime!(config.sum(m, l, parts) + p)] += products[m];
        }
    }
}

/// The unit's inputs of its team's block, as the rows' adapters change those of the unit's part `p`.
#[cube]
fn gained_inputs(
    buffers: &Buffers<'_>,
    x: &Array<f32>,
    span: &Span<'_>,
    place: &Place,
    #[comptime] p: usize,
    #[comptime] config: ContractConfig,
) -> Array<f32> {
    let width = comptime!(config.width() as usize);
    let mut gained = Array::<f32>::new(comptime!(config.cube_rows as usize * width));
    #[unroll]
    for i in 0..comptime!(config.cube_rows as usize * width) {
        gained[i] = x[i];
    }
    if let Some(adapters) = comptime!(config.adapters) {
        #[unroll]
        for m in 0..comptime!(config.cube_rows) {
            let row = cube_row(buffers, span.row, m, comptime!(config.clone()));
            let entry = entry_of(buffers, row, span.lanes.parts[p], adapters);
            let gain = buffers.pool[(entry + entry::GAIN_IN) as usize];
            if gain > 0 {
                #[unroll]
                for i in 0..width {
                    let lane = input_lane(place.block, i, comptime!(config.clone()));
                    let factor = buffers.pool[(gain + lane) as usize];
                    gained[comptime!(m as usize * width + i)] *= f32::reinterpret(factor);
                }
            }
        }
    }
    gained
}

/// The input's lane that is the unit's lane `i` of a block; the last one behind the row's end.
#[cube]
fn input_lane(block: u32, #[comptime] i: usize, #[comptime] config: ContractConfig) -> u32 {
    let team = comptime!(config.team_units());
    let chunk = comptime!(config.chunk());
    let number = comptime!(i as u32 / chunk * team) + UNIT_POS % team;
    let lane = block * comptime!(config.block()) + number * chunk + comptime!(i as u32 % chunk);
    min(lane, comptime!(config.k - 1).runtime())
}

/// Products of each row's runs of block `block` with the weights of the row that starts at byte `row`. Of each row and run the
/// inputs' sum is in `totals`.
#[cube]
fn lane_products(
    buffers: &Buffers<'_>,
    products: &mut Array<f32>,
    row: u32,
    x: &Array<f32>,
    totals: &Array<f32>,
    block: u32,
    #[comptime] config: ContractConfig,
    #[comptime] format: Format,
) {
    let rows = comptime!(config.cube_rows as usize);
    let runs = comptime!(config.runs() as usize);
    let (team, chunk) = comptime!((config.team_units(), config.chunk()));
    let mut numbers = Array::<f32>::new(RUN);
    #[unroll]
    for m in 0..rows {
        products[m] = 0.0f32.runtime();
    }
    if comptime!(chunk < RUN as u32) {
        decode_chunks(
            buffers,
            row,
            block * comptime!(config.block()) + UNIT_POS % team * chunk,
            comptime!(team * chunk),
            &mut numbers,
            format,
            comptime!(chunk as usize),
            comptime!(config.is_wide()),
        );
        #[unroll]
        for m in 0..rows {
            products[m] = dot(&numbers, x, comptime!(m * RUN));
        }
    } else {
        let unit = unit_number(block, comptime!(config.clone()));
        #[unroll]
        for r in 0..runs {
            let run = unit * comptime!(runs as u32) + comptime!(r as u32);
            let line = read_run(buffers, row, run, &mut numbers, format, comptime!(config.k));
            #[unroll]
            for m in 0..rows {
                let own = comptime!(m * runs + r);
                let from = comptime!(own * RUN);
                products[m] += run_product(&numbers, &line, x, totals[own], from, format);
            }
        }
    }
}
