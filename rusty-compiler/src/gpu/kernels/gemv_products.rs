//! What [the matrix-vector kernel](super::gemv) sums: products of a cube's rows with a team's lanes, over all blocks of a row.

use super::byte_inputs::{load_bytes, make_bytes};
use super::contract::{ContractConfig, UnitConfig};
use super::delta::{entry, entry_of};
use super::env::Buffers;
use super::gemv_bytes::byte_block;
use super::gemv_floats::{float_block, load_floats};
use super::gemv_inputs::make_inputs;
use super::gemv_place::Place;
use super::gemv_sums::CubeMemory;
use super::reduce::no_sums;
use cubecl::prelude::*;

/// What a cube multiplies.
#[derive(CubeType)]
pub struct Span {
    /// Its first input row.
    pub row: u32,
    /// Its first lane.
    pub first: u32,
    /// The lane behind the launch's last.
    pub end: u32,
    /// Bytes from the launch's weights to those that are meant.
    pub behind: u32,
    /// What norms that the prologue has before its end need to know of the row, where it is alone.
    pub factors: Sequence<f32>,
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
    span: &Span,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    if comptime!(config.has_both()) {
        let rows = buffers.step[comptime!(config.rows)];
        let mut all = 1u32.runtime();
        for m in 0..config.cube_rows {
            let (settings, unit) = comptime!((config.clone(), unit.clone()));
            all &= is_changed(buffers, span.row + m, rows, settings, unit);
        }
        if all == 0 {
            let (settings, unit) = comptime!((config.clone(), unit.clone()));
            add_rows(buffers, memory, sums, squares, span, settings, unit);
        }
        for m in 0..config.cube_rows {
            let (settings, parts) = comptime!((config.clone(), unit.clone()));
            let changed = is_changed(buffers, span.row + m, rows, settings, parts);
            if changed > 0 && span.row + m < rows {
                let (settings, unit) = comptime!((config.clone(), unit.clone()));
                put_floats(buffers, memory, sums, squares, span, m, settings, unit);
            }
        }
    } else {
        add_rows(buffers, memory, sums, squares, span, config, unit);
    }
}

/// The products of all of the cube's rows: of half as many where there are no more, whose work they would double.
#[cube]
fn add_rows(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    squares: &mut Array<f32>,
    span: &Span,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    match comptime!(config.of_half()) {
        Some(half) => {
            let rows = buffers.step[comptime!(config.rows)];
            if rows - span.row <= half.cube_rows {
                let unit = comptime!(unit.clone());
                accumulate(buffers, memory, sums, squares, span, half, unit);
            } else {
                accumulate(buffers, memory, sums, squares, span, config, unit);
            }
        }
        None => accumulate(buffers, memory, sums, squares, span, config, unit),
    }
}

/// Whether the adapter of row `row` of `rows`, or of the last one, changes inputs of the unit's parts by factors: 1 or 0.
#[cube]
fn is_changed(
    buffers: &Buffers<'_>,
    row: u32,
    rows: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) -> u32 {
    let mut any = 0u32.runtime();
    if let Some(adapters) = comptime!(config.adapters) {
        #[unroll]
        for p in 0..comptime!(unit.parts.len()) {
            let part = comptime!(unit.parts[p] as u32).runtime();
            let entry = entry_of(buffers, min(row, rows - 1), part, adapters);
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
    span: &Span,
    m: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let count = comptime!(config.sum(1, 0, unit.parts.len()));
    let row = Span {
        row: span.row + m,
        first: span.first,
        end: span.end,
        behind: span.behind,
        factors: span.factors.clone(),
    };
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
        unit,
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
    span: &Span,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    let segment = &memory.segment;
    let team = comptime!(config.team_units());
    let start = span.first + (UNIT_POS / team) * config.lanes;
    let blocks = comptime!(config.k.div_ceil(config.block()));
    let held = comptime!(config.segment() / config.block());
    let mut block = 0u32.runtime();
    while block < blocks {
        let here = min(held.runtime(), blocks - block);
        let settings = comptime!(config.clone());
        if comptime!(config.bytes) {
            make_bytes(buffers, segment, squares, span, block, here, settings);
        } else {
            make_inputs(buffers, segment, squares, span, block, here, settings);
        }
        sync_cube();
        for b in 0..here {
            let place = Place {
                row: span.row,
                start,
                end: span.end,
                block: block + b,
                behind: span.behind,
            };
            let settings = comptime!(config.clone());
            let unit = comptime!(unit.clone());
            if comptime!(config.bytes) {
                let x = load_bytes(segment, b, comptime!(config.clone()));
                byte_block(buffers, sums, &x, &place, settings, unit);
            } else {
                let x = load_floats(segment, b, comptime!(config.clone()));
                float_block(buffers, sums, &x, &place, settings, unit);
            }
        }
        if comptime!(blocks > held) {
            sync_cube();
        }
        block += held;
    }
}
