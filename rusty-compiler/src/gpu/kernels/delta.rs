//! Adapters inside fused kernels.
//!
//! For row `i` with slot `s` a site computes `gain_out (W (gain_in x)) + B (scale (A x)) + bias`.
//! `u = scale (A x)` is [made](super::shrink) for every row and part of a contraction; the contraction's adapter variant applies the
//! rest while its products are in registers.
//!
//! A kernel's tables live in its *pool*: an entry of [`ENTRY`] words for every slot and part, then data. An
//! entry of zeros is the plain product, so attaching and detaching write memory and nothing else.

use super::bits::{byte_at, f16_value, half_at};
use super::env::{Buffers, header};
use crate::interleaving;
use cubecl::prelude::*;
use rusty_loader::{Format, formats};

/// Words of a table entry. From A to the bias they are word offsets in the pool, 0 where absent.
pub mod entry {
    /// The rank. Kernels read it where the entry starts.
    pub const RANK: u32 = 0;
    /// A; without it, A is the identity.
    pub const A: u32 = 1;
    /// B.
    pub const B: u32 = 2;
    /// Factors of the ranks.
    pub const SCALE: u32 = 3;
    /// Factors of the input.
    pub const GAIN_IN: u32 = 4;
    /// Factors of the product.
    pub const GAIN_OUT: u32 = 5;
    /// What is added last.
    pub const BIAS: u32 = 6;
    /// A's code of its format, B's shifted by [`FORMAT_BITS`](super::FORMAT_BITS).
    pub const FORMATS: u32 = 7;
}

/// Words of a table [`entry`].
pub const ENTRY: u32 = entry::FORMATS + 1;
// Kernels add nothing to an entry to read its rank, because adding 0 would be an instruction.
const _: () = assert!(entry::RANK == 0);
/// Bits of a format's code.
pub const FORMAT_BITS: u32 = 4;
pub(super) const FORMAT_MASK: u32 = (1 << FORMAT_BITS) - 1;
/// Codes of formats.
pub(super) const F32: u32 = 0;
pub(super) const F16: u32 = 1;
pub(super) const BF16: u32 = 2;
pub(super) const INT8: u32 = 3;
pub(super) const INT4: u32 = 4;
pub(super) const TABLE_FORMATS: u32 = INT4 + 1;
/// Ranks side by side in Q8_0, and bytes of a block of their codes and scales.
const SIDE: u32 = interleaving::QUARTET as u32;
const CODES: u32 = interleaving::CODES as u32;
const SCALES: u32 = interleaving::SCALES as u32;
/// Ranks of a block of B, bytes of a panel's scales of them, and the unit to which the factors of ranks are filled up.
const RANKS: u32 = interleaving::RANKS as u32;
const PANEL_SCALES: u32 = interleaving::PANEL_SCALES as u32;
const FACTORS: u32 = interleaving::FACTORS as u32;
/// Elements of a block, and columns of a panel of B.
const BLOCK: u32 = 32;

/// Code of a table's format.
pub fn format_code(format: Format) -> u32 {
    match format {
        Format::F32 => F32,
        Format::F16 => F16,
        Format::Bf16 => BF16,
        Format::Blocks(codec) if *codec == formats::Q8_0 => INT8,
        Format::Blocks(_) => INT4,
    }
}

/// Where a contraction finds its adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adapters {
    /// Parts of the contraction: entries per slot.
    pub parts: u32,
    /// First of two scalars: arena word of `u`, ranks per row and part in it.
    pub arg: usize,
    /// Header word of the kernel's row count: tells step rows from selected rows.
    pub rows: usize,
}

/// Word of the table entry of a row and part.
#[cube]
pub fn entry_of(buffers: &Buffers<'_>, row: u32, part: u32, #[comptime] adapters: Adapters) -> u32 {
    let from = if comptime!(adapters.rows == header::SELECTED) {
        buffers.step[(buffers.step[header::OUTPUTS] + row) as usize]
    } else {
        row
    };
    let slot = buffers.step[(buffers.step[header::SLOTS] + from) as usize];
    (slot * adapters.parts + part) * ENTRY
}

/// The factor on lane `lane` of a site's input.
#[cube]
pub fn gain_in(buffers: &Buffers<'_>, entry: u32, lane: u32) -> f32 {
    let gain = buffers.pool[(entry + entry::GAIN_IN) as usize];
    let mut factor = 1.0f32;
    if gain > 0 {
        factor = f32::reinterpret(buffers.pool[(gain + lane) as usize]);
    }
    factor
}

/// Element `element` of a table of rows that starts at word `at`, counted row by row.
#[cube]
#[allow(unused_assignments)]
fn table_value(pool: &[u32], at: u32, element: u32, format: u32) -> f32 {
    let mut value = 0.0f32;
    if format == F32 {
        value = plain_value(pool, at, element, F32);
    } else if format == F16 {
        value = plain_value(pool, at, element, F16);
    } else if format == BF16 {
        value = plain_value(pool, at, element, BF16);
    } else {
        value = plain_value(pool, at, element, INT4);
    }
    value
}

/// The same of a format that is known.
#[cube]
fn plain_value(pool: &[u32], at: u32, element: u32, #[comptime] format: u32) -> f32 {
    match comptime!(format) {
        F32 => f32::reinterpret(pool[(at + element) as usize]),
        F16 => f16_value(half_at(pool, at * 4 + element * 2)),
        BF16 => f32::reinterpret(half_at(pool, at * 4 + element * 2) << 16),
        _ => nibble_value(pool, at * 4, element),
    }
}

/// The same for Q4_0; `at` is a byte.
#[cube]
fn nibble_value(pool: &[u32], at: u32, element: u32) -> f32 {
    let lane = element % BLOCK;
    let block = at + element / BLOCK * 18;
    let byte = byte_at(pool, block + 2 + lane % 16);
    let code = f32::cast_from((byte >> (lane / 16 * 4)) & 15) - 8.0;
    f16_value(half_at(pool, block)) * code
}

/// Element `[r, lane]` of `A [rank, k]`.
#[cube]
pub(super) fn a_value(
    pool: &[u32],
    at: u32,
    r: u32,
    lane: u32,
    k: u32,
    #[comptime] format: u32,
) -> f32 {
    if comptime!(format == INT8) {
        // See `crate::interleaving`.
        let blocks = k / BLOCK;
        let (block, rank) = (lane / BLOCK, r % SIDE);
        let base = at * 4 + r / SIDE * blocks * (CODES + SCALES);
        let (half, code) = (lane % BLOCK / 16, lane % 16);
        let code = base + block * CODES + half * (CODES / 2) + rank * 16 + code;
        // Flipping the sign bit turns two's complement into an offset of 128.
        let code = f32::cast_from(byte_at(pool, code) ^ 128) - 128.0;
        let scale = base + blocks * CODES + block * SCALES + rank * 2;
        f16_value(half_at(pool, scale)) * code
    } else {
        plain_value(pool, at, r * k + lane, format)
    }
}

/// Element `[lane, r]` of `B [n, rank]`.
#[cube]
#[allow(unused_assignments)]
pub(super) fn b_value(pool: &[u32], at: u32, lane: u32, r: u32, rank: u32, format: u32) -> f32 {
    let mut value = 0.0f32;
    let panel = lane / BLOCK;
    if format == INT8 {
        let filled = rank.div_ceil(SIDE) * SIDE;
        let blocks = rank.div_ceil(RANKS);
        let factors = rank.div_ceil(FACTORS) * (FACTORS * 4);
        let panel = panel * (blocks * PANEL_SCALES + filled * BLOCK);
        let block = at * 4 + factors + panel + r / RANKS * (PANEL_SCALES + RANKS * BLOCK);
        let code = r % RANKS / SIDE * CODES + lane % BLOCK * SIDE + r % SIDE;
        let code = f32::cast_from(byte_at(pool, block + PANEL_SCALES + code)) - 128.0;
        let scale = f16_value(half_at(pool, block + lane % BLOCK * 2));
        value = scale * code * f32::reinterpret(pool[(at + r) as usize]);
    } else {
        value = table_value(pool, at, (panel * rank + r) * BLOCK + lane % BLOCK, format);
    }
    value
}

/// A product with the row's adapter applied.
#[cube]
pub fn adapted(
    buffers: &Buffers<'_>,
    product: f32,
    row: u32,
    lane: u32,
    part: u32,
    #[comptime] adapters: Adapters,
) -> f32 {
    let entry = entry_of(buffers, row, part, adapters);
    let mut rank = buffers.pool[entry as usize];
    let table = buffers.pool[(entry + entry::B) as usize];
    if table == 0 {
        rank = 0u32.runtime();
    }
    let format = buffers.pool[(entry + entry::FORMATS) as usize] >> FORMAT_BITS;
    let u = buffers.args[adapters.arg]
        + (row * adapters.parts + part) * buffers.args[comptime!(adapters.arg + 1)];
    let mut sum = product;
    let gain = buffers.pool[(entry + entry::GAIN_OUT) as usize];
    if gain > 0 {
        sum *= f32::reinterpret(buffers.pool[(gain + lane) as usize]);
    }
    for r in 0..rank {
        sum +=
            b_value(buffers.pool, table, lane, r, rank, format) * buffers.arena[(u + r) as usize];
    }
    let bias = buffers.pool[(entry + entry::BIAS) as usize];
    if bias > 0 {
        sum += f32::reinterpret(buffers.pool[(bias + lane) as usize]);
    }
    sum
}
