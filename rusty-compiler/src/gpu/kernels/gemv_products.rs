//! What [the matrix-vector kernel](super::gemv) sums: products of a cube's rows with a team's lanes, over all blocks of a row.

use super::byte_inputs::{load_bytes, make_bytes};
use super::contract::ContractConfig;
use super::delta::{entry, entry_of};
use super::env::Buffers;
use super::gemv_bytes::byte_block;
use super::gemv_floats::{float_block, load_floats};
use super::gemv_inputs::make_inputs;
use super::gemv_place::Place;
use super::gemv_sums::CubeMemory;
use super::reduce::no_sums;
use super::unit_lanes::{AlikeUnits, Lanes};
use cubecl::prelude::*;

/// What a cube multiplies.
#[derive(CubeType)]
pub struct Span<'a> {
    /// Its first input row.
    pub row: u32,
    /// Its lanes.
    pub lanes: &'a Lanes,
    /// What norms that the prologue has before its end need to know of the row, where it is alone.
    pub factors: Sequence<f32>,
}

/// What a cube multiplies: rows from `row` on, with its lanes.
#[cube]
pub fn span_of<'a>(row: u32, lanes: &'a Lanes, factors: Sequence<f32>) -> Span<'a> {
    Span::<'a> {
        row,
        lanes,
        factors,
    }
}

/// Adds each unit's part of the products `sums[row][lane][part]`, and of the inputs' squares. All units of the cube must call it
/// together.
///
/// Where bytes are multiplied, inputs that an adapter's factors change are floats: those of their row in a pass of their own.
#[cube]
pub fn add_products(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    squares: &mut Array<f32>,
    span: &Span<'_>,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    if comptime!(config.has_both()) {
        let rows = buffers.step[comptime!(config.rows)];
        let mut all = 1u32.runtime();
        for m in 0..config.cube_rows {
            let (settings, alike) = comptime!((config.clone(), alike.clone()));
            all &= is_changed(buffers, span, m, rows, settings, alike);
        }
        if all == 0 {
            let (settings, alike) = comptime!((config.clone(), alike.clone()));
            add_rows(buffers, memory, sums, squares, span, settings, alike);
        }
        for m in 0..config.cube_rows {
            let (settings, own) = comptime!((config.clone(), alike.clone()));
            let changed = is_changed(buffers, span, m, rows, settings, own);
            if changed > 0 && span.row + m < rows {
                let (settings, alike) = comptime!((config.clone(), alike.clone()));
                put_floats(buffers, memory, sums, squares, span, m, settings, alike);
            }
        }
    } else {
        add_rows(buffers, memory, sums, squares, span, config, alike);
    }
}

/// The products of all of the cube's rows: of half as many where there are no more, whose work they would double.
#[cube]
fn add_rows(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    squares: &mut Array<f32>,
    span: &Span<'_>,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    match comptime!(config.of_half()) {
        Some(half) => {
            let rows = buffers.step[comptime!(config.rows)];
            if rows - span.row <= half.cube_rows {
                let alike = comptime!(alike.clone());
                accumulate(buffers, memory, sums, squares, span, half, alike);
            } else {
                accumulate(buffers, memory, sums, squares, span, config, alike);
            }
        }
        None => accumulate(buffers, memory, sums, squares, span, config, alike),
    }
}

/// Whether the adapter of the cube's row `m`, or of the last of `rows`, changes inputs of the unit's parts by factors: 1 or 0.
#[cube]
fn is_changed(
    buffers: &Buffers<'_>,
    span: &Span<'_>,
    m: u32,
    rows: u32,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) -> u32 {
    let mut any = 0u32.runtime();
    if let Some(adapters) = comptime!(config.adapters) {
        #[unroll]
        for p in 0..comptime!(alike.parts.len()) {
            let row = min(span.row + m, rows - 1);
            let entry = entry_of(buffers, row, span.lanes.parts[p], adapters);
            any = max(any, buffers.pool[(entry + entry::GAIN_IN) as usize]);
        }
    }
    min(any, 1u32)
}

/// Puts products of floats in the place of those of the cube's row `m`.
#[cube]
fn put_floats(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    squares: &mut Array<f32>,
    span: &Span<'_>,
    m: u32,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    let count = comptime!(config.sum(1, 0, alike.parts.len()));
    let row = span_of(span.row + m, span.lanes, span.factors.clone());
    let mut own = no_sums(count);
    let mut own_squares = no_sums(1usize);
    // Units may still read the inputs before.
    sync_cube();
    accumulate(
        buffers,
        memory,
        &mut own,
        &mut own_squares,
        &row,
        comptime!(config.of_floats()),
        alike,
    );
    #[unroll]
    for other in 0..comptime!(config.cube_rows as usize) {
        if m == comptime!(other as u32) {
            squares[other] = own_squares[0];
            #[unroll]
            for i in 0..count {
                sums[comptime!(other * count + i)] = own[i];
            }
        }
    }
}

#[cube]
fn accumulate(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    squares: &mut Array<f32>,
    span: &Span<'_>,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    let segment = &memory.segment;
    let team = comptime!(config.team_units());
    let start = span.lanes.first + (UNIT_POS / team) * config.lanes;
    let blocks = comptime!(config.k.div_ceil(config.block()));
    let held = comptime!(config.segment() / config.block());
    let mut block = 0u32.runtime();
    while block < blocks {
        let here = min(held.runtime(), blocks - block);
        let settings = comptime!(config.clone());
        make_segment(buffers, segment, squares, span, block, here, 0u32, settings);
        sync_cube();
        for b in 0..here {
            let place = Place {
                start,
                block: block + b,
            };
            let (settings, alike) = comptime!((config.clone(), alike.clone()));
            add_block(buffers, segment, sums, span, &place, b, settings, alike);
        }
        if comptime!(blocks > held) {
            sync_cube();
        }
        block += held;
    }
}

/// Makes a segment of a cube's inputs, `here` blocks from block `block` on, from word `begin` of shared memory on. All units of the cube
/// must call it together.
#[cube]
pub fn make_segment(
    buffers: &Buffers<'_>,
    segment: &Shared<[u32]>,
    squares: &mut Array<f32>,
    span: &Span<'_>,
    block: u32,
    here: u32,
    begin: u32,
    #[comptime] config: ContractConfig,
) {
    if comptime!(config.bytes) {
        make_bytes(buffers, segment, squares, span, block, here, begin, config);
    } else {
        make_inputs(buffers, segment, squares, span, block, here, begin, config);
    }
}

/// Adds the products of a team's block, whose inputs are block `b` of those in shared memory.
#[cube]
pub fn add_block(
    buffers: &Buffers<'_>,
    segment: &Shared<[u32]>,
    sums: &mut Array<f32>,
    span: &Span<'_>,
    place: &Place,
    b: u32,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    let settings = comptime!(config.clone());
    if comptime!(config.bytes) {
        let x = load_bytes(segment, b, settings);
        byte_block(buffers, sums, &x, span, place, config, alike);
    } else {
        let x = load_floats(segment, b, settings);
        float_block(buffers, sums, &x, span, place, config, alike);
    }
}
