//! The two small products of an adapter at a site: `u = scale (A x)` and `y = gain_out y + gain_low (B u) + bias`.
//!
//! `A` is read along its rows, `B` in panels of 32 outputs, so that the second product needs no sum over lanes.
//! Codes of four bits are decoded in registers; bytes are multiplied as they are, see [`super::int8_reduce`] and
//! [`super::int8_expand`].

use super::int4_reduce::{self, Int4Rows};
use super::int8_expand;
use super::int8_reduce::{self, Quartets};
use super::kronecker;
use super::site_tables::{SiteTables, Table, TableKind};
use super::table_values::{InQ4, Panel};
use crate::cpu::float::{self, FloatKind, FloatRows, InBf16, InF16, InF32, RowKind};
use crate::cpu::prefetch::{Ahead, Ask, LINE, ask_for_soon};
use crate::cpu::quantize::InputRows;
use crate::cpu::row_tiles::Extent;
use crate::cpu::simd::byte_products::ByteProducts;
use crate::cpu::simd::{LANES, Level, Vector, per_isa};
use crate::delta_table::PANEL;

/// `u[row * stride + r] = scale[r] * (A[r] . x[taken(first + row)])` for ranks `from .. to`; `u` comes with its stride. Meanwhile
/// what lies `distance` bytes behind those ranks of `A` is asked for, but where they are codes of four bits.
///
/// # Safety
/// The rows' single-precision inputs are filled; this thread owns those ranks of `u`, which begin at a whole quartet;
/// the delta fits its site.
pub(in crate::cpu) unsafe fn reduce(
    level: Level,
    delta: &SiteTables,
    x: InputRows,
    (first, rows): (usize, usize),
    (from, to): (usize, usize),
    (u, stride): (*mut f32, usize),
    distance: Option<isize>,
) {
    if from >= to {
        return;
    }
    if let Some(kron) = delta.kron {
        // SAFETY: the caller's duty.
        return unsafe {
            kronecker::reduce(
                level,
                (delta, kron),
                x,
                (first, rows),
                (from, to),
                (u, stride),
            )
        };
    }
    let extent = Extent {
        first,
        rows,
        columns: to - from,
        out: u.wrapping_add(from),
        stride,
    };
    // SAFETY: the caller's duty; `A` has `rank` rows of `k`.
    unsafe {
        match delta.a {
            Some(a) => {
                let at = a.at.wrapping_add(from * a.row_bytes);
                multiply(level, (Table { at, ..a }, delta.k), x, extent, distance);
            }
            None => {
                for row in 0..rows {
                    let from_x = x.float_row(x.taken(first + row)).add(from);
                    std::ptr::copy_nonoverlapping(from_x, u.add(row * stride + from), to - from);
                }
            }
        }
        for row in 0..rows {
            for r in from..to {
                let scale = delta.even.unwrap_or_else(|| *delta.scale.add(r));
                *u.add(row * stride + r) *= scale;
            }
        }
    }
}

pub(super) unsafe fn multiply(
    level: Level,
    (a, k): (Table, usize),
    x: InputRows,
    extent: Extent,
    distance: Option<isize>,
) {
    let at = a.at;
    // SAFETY: the caller's duty.
    unsafe {
        match a.kind {
            TableKind::Float(kind) => {
                let rows = FloatRows {
                    kind: RowKind::Plain(kind),
                    at,
                    k,
                    ask: distance.map_or(Ask::Nothing, Ask::Elsewhere),
                };
                float::multiply(level, rows, x, extent, &mut Ahead::default())
            }
            TableKind::Int8 => {
                int8_reduce::multiply(level, Quartets { at, k, distance }, x, extent)
            }
            TableKind::Int4 => int4_reduce::multiply(level, Int4Rows { at, k }, x, extent),
        }
    }
}

/// Adds the delta to columns `first ..` of some rows: `y = gain_out * y + gain_low * B u + bias`. `u` and `y` come with the
/// distance of their rows.
///
/// # Safety
/// `first` is a multiple of 32; a row of `y` holds `count` columns rounded up to 16, one of `u` as many values as the delta
/// [has](SiteTables::lows); the delta fits its site.
pub(in crate::cpu) unsafe fn expand(
    level: Level,
    delta: &SiteTables,
    rows: usize,
    u: (*const f32, usize),
    (first, count): (usize, usize),
    y: (*mut f32, usize),
) {
    // Gains and biases act without ranks, too.
    let b = delta.b.filter(|_| delta.rank > 0);
    let columns = Columns {
        b: b.map_or(std::ptr::null(), |b| b.at),
        kind: b.map_or(TableKind::Float(FloatKind::F32), |b| b.kind),
        rank: b.map_or(0, |_| delta.rank),
        low: delta.gain_low,
        gain: delta.gain_out,
        bias: delta.bias,
        first,
        count,
        rows,
    };
    // SAFETY: the caller's duty.
    unsafe {
        match (delta.kron, b) {
            (Some(kron), Some(b)) => kronecker::expand(level, columns, (kron, b), u, y),
            _ => expand_columns(level, columns, u, y),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) b: *const u8,
    pub(super) kind: TableKind,
    pub(super) rank: usize,
    pub(super) low: *const f32,
    pub(super) gain: *const f32,
    pub(super) bias: *const f32,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) rows: usize,
}

per_isa! {
    pub(super) fn expand_columns(columns: Columns, u: (*const f32, usize), y: (*mut f32, usize)) = products expand_with
}

#[inline(always)]
unsafe fn expand_with<V: ByteProducts>(c: Columns, u: (*const f32, usize), y: (*mut f32, usize)) {
    // SAFETY: the caller's duty.
    unsafe {
        match c.kind {
            TableKind::Float(FloatKind::F32) => expand_rows::<V, InF32>(c, u, y),
            TableKind::Float(FloatKind::F16) => expand_rows::<V, InF16>(c, u, y),
            TableKind::Float(FloatKind::Bf16) => expand_rows::<V, InBf16>(c, u, y),
            TableKind::Int8 => int8_expand::expand::<V>(c, u, y),
            TableKind::Int4 => expand_rows::<V, InQ4>(c, u, y),
        }
    }
}

#[inline(always)]
unsafe fn expand_rows<V: Vector, P: Panel>(
    c: Columns,
    (u, u_stride): (*const f32, usize),
    (y, y_stride): (*mut f32, usize),
) {
    for row in 0..c.rows {
        // SAFETY: the caller's duty.
        unsafe { expand_panels::<V, P>(c, u.add(row * u_stride), y.add(row * y_stride)) };
    }
}

#[inline(always)]
unsafe fn expand_panels<V: Vector, P: Panel>(c: Columns, u: *const f32, y: *mut f32) {
    let mut i = 0;
    // SAFETY: the caller's duty.
    unsafe {
        while c.count.saturating_sub(i) > PANEL {
            panel_rows::<V, P, 2>(c, i, u, y);
            i += 2 * PANEL;
        }
        if i < c.count {
            panel_rows::<V, P, 1>(c, i, u, y);
        }
    }
}

/// How far ahead of its use a `B` of floats is asked for into the first cache: products before had it brought into the second, and out of
/// that a core fetches too little of several short runs by itself.
const ASKED: usize = 4 << 10;

/// Columns `i ..` of the strip, up to the end of their panel and `N - 1` more panels.
#[inline(always)]
unsafe fn panel_rows<V: Vector, P: Panel, const N: usize>(
    c: Columns,
    i: usize,
    u: *const f32,
    y: *mut f32,
) {
    let panel = (c.first + i) / PANEL;
    // SAFETY: the caller's duty.
    unsafe {
        let at: [*const u8; N] =
            std::array::from_fn(|n| c.b.wrapping_add((panel + n) * c.rank * P::BYTES));
        let mut sums = [[V::splat(0.0); 2]; N];
        for r in 0..c.rank {
            for n in 0..N {
                let p = at[n].add(r * P::BYTES);
                for line in 0..P::BYTES / LINE {
                    ask_for_soon(p.addr() + ASKED + line * LINE);
                }
                let (low, high) = P::load::<V>(p);
                let u = V::splat(P::scale::<V>(p) * *u.add(r));
                sums[n][0] = V::fma(low, u, sums[n][0]);
                sums[n][1] = V::fma(high, u, sums[n][1]);
            }
        }
        // By number: an iterator over the vectors would take them through the stack, in other pieces than they were stored in.
        for n in 0..N {
            add_half::<V>(c, 2 * (panel + n), sums[n][0], y);
            add_half::<V>(c, 2 * (panel + n) + 1, sums[n][1], y);
        }
    }
}

/// Adds the sums of half a panel where the strip has it.
#[inline(always)]
pub(super) unsafe fn add_half<V: Vector>(c: Columns, half: usize, sum: V::F, y: *mut f32) {
    let column = half * LANES;
    if column < c.first + c.count {
        // SAFETY: the caller's duty.
        unsafe { add_to::<V>(c, column, sum, y) };
    }
}

/// `y = gain_out * y + gain_low * sum + bias` for up to 16 columns.
#[inline(always)]
unsafe fn add_to<V: Vector>(c: Columns, column: usize, sum: V::F, y: *mut f32) {
    let i = column - c.first;
    let n = (c.count - i).min(LANES);
    // SAFETY: the caller's duty.
    unsafe {
        let mut value = V::load(y.add(i));
        if !c.gain.is_null() {
            value = V::mul(value, lanes::<V>(c.gain.add(column), n));
        }
        value = match c.low.is_null() {
            true => V::add(value, sum),
            false => V::fma(lanes::<V>(c.low.add(column), n), sum, value),
        };
        if !c.bias.is_null() {
            value = V::add(value, lanes::<V>(c.bias.add(column), n));
        }
        V::store(y.add(i), value);
    }
}

#[inline(always)]
unsafe fn lanes<V: Vector>(p: *const f32, n: usize) -> V::F {
    // SAFETY: the caller's duty.
    unsafe {
        if n == LANES {
            V::load(p)
        } else {
            V::load_part(p, n)
        }
    }
}
