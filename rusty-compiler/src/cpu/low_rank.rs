//! The two small products of an adapter at a site: `u = scale (A x)` and `y = gain y + B u + bias`.
//!
//! `A` is read along its rows, `B` in panels of 32 outputs, so that the second product needs no sum over lanes.
//! Block formats are decoded in registers.

use super::float::{self, Extent, FloatKind, FloatRows, InBf16, InF16, InF32};
use super::prefetch::prefetch;
use super::quantize::InputRows;
use super::simd::{LANES, Level, Vector, per_isa};
use super::stored_panel::{InQ4, InQ8, Panel};
use crate::delta_table::{DeltaTable, PANEL};
use crate::slots::SiteDelta;
use rusty_loader::Format;
use std::sync::Arc;

/// `u[row * stride + r] = scale[r] * (A[r] . x[first + row])` for ranks `from .. to`.
///
/// # Safety
/// The rows' single-precision inputs are filled; this thread owns those ranks of `u`; the delta fits its site.
pub(super) unsafe fn reduce(
    level: Level,
    delta: &SiteDelta,
    x: InputRows,
    (first, rows): (usize, usize),
    (from, to): (usize, usize),
    u: *mut f32,
    stride: usize,
) {
    if from >= to {
        return;
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
        match &delta.a {
            Some(a) => multiply(level, a, from, x, extent),
            None => {
                for row in 0..rows {
                    let from_x = x.float_row(first + row).add(from);
                    std::ptr::copy_nonoverlapping(from_x, u.add(row * stride + from), to - from);
                }
            }
        }
        for row in 0..rows {
            for r in from..to {
                *u.add(row * stride + r) *= delta.scale[r];
            }
        }
    }
}

/// Asks for ranks `from .. to` of `A`.
pub(super) fn prefetch_ranks(delta: &SiteDelta, (from, to): (usize, usize)) {
    if let Some(a) = &delta.a {
        let rows = from * a.row_bytes()..to * a.row_bytes();
        prefetch(a.bytes().get(rows).unwrap_or_default());
    }
}

/// Asks for the panels of columns `first ..`.
pub(super) fn prefetch_columns(delta: &SiteDelta, (first, count): (usize, usize)) {
    if let Some(b) = &delta.b {
        let panel = delta.rank as usize * b.row_bytes();
        let panels = first / PANEL * panel..(first + count).div_ceil(PANEL) * panel;
        prefetch(b.bytes().get(panels).unwrap_or_default());
    }
}

unsafe fn multiply(level: Level, a: &DeltaTable, from: usize, x: InputRows, extent: Extent) {
    let at = a.bytes().as_ptr().wrapping_add(from * a.row_bytes());
    let k = a.columns();
    let kind = match a.format() {
        Format::F32 => Some(FloatKind::F32),
        Format::F16 => Some(FloatKind::F16),
        Format::Bf16 => Some(FloatKind::Bf16),
        Format::Blocks(_) => None,
    };
    // SAFETY: the caller's duty.
    unsafe {
        match kind {
            Some(kind) => float::multiply(level, FloatRows { kind, at, k }, x, extent),
            None => {
                let nibbles = is_nibbles(a);
                multiply_blocks(level, BlockRows { at, k, nibbles }, x, extent);
            }
        }
    }
}

/// Whether a block table is Q4_0, not Q8_0.
fn is_nibbles(table: &DeltaTable) -> bool {
    table.format().block_bytes() == InQ4::BYTES
}

/// Adds the delta to columns `first ..` of some rows: `y = gain_out * y + B u + bias`. `u` and `y` come with the
/// distance of their rows.
///
/// # Safety
/// `first` is a multiple of 16; a row of `y` holds `count` columns rounded up to 16, one of `u` `rank` values; the delta
/// fits its site.
pub(super) unsafe fn expand(
    level: Level,
    delta: &SiteDelta,
    rows: usize,
    u: (*const f32, usize),
    (first, count): (usize, usize),
    y: (*mut f32, usize),
) {
    let vector = |v: &Option<Arc<[f32]>>| v.as_ref().map_or(std::ptr::null(), |v| v.as_ptr());
    let b = delta.b.as_ref();
    let columns = Columns {
        b: b.map_or(std::ptr::null(), |b| b.bytes().as_ptr()),
        format: match b.map(DeltaTable::format) {
            None | Some(Format::F32) => PanelFormat::F32,
            Some(Format::F16) => PanelFormat::F16,
            Some(Format::Bf16) => PanelFormat::Bf16,
            Some(Format::Blocks(_)) if b.is_some_and(is_nibbles) => PanelFormat::Q4,
            Some(Format::Blocks(_)) => PanelFormat::Q8,
        },
        rank: if b.is_some() { delta.rank as usize } else { 0 },
        gain: vector(&delta.gain_out),
        bias: vector(&delta.bias),
        first,
        count,
        rows,
    };
    // SAFETY: the caller's duty.
    unsafe { expand_columns(level, columns, u, y) }
}

/// Rows of Q8_0 or Q4_0 blocks.
#[derive(Clone, Copy)]
struct BlockRows {
    at: *const u8,
    k: usize,
    nibbles: bool,
}

per_isa! {
    fn multiply_blocks(a: BlockRows, x: InputRows, extent: Extent) = multiply_blocks_with
}

#[inline(always)]
unsafe fn multiply_blocks_with<V: Vector>(a: BlockRows, x: InputRows, e: Extent) {
    // SAFETY: the caller's duty.
    unsafe {
        match a.nibbles {
            false => block_rows::<V, InQ8>(a, x, e),
            true => block_rows::<V, InQ4>(a, x, e),
        }
    }
}

#[inline(always)]
unsafe fn block_rows<V: Vector, P: Panel>(a: BlockRows, x: InputRows, e: Extent) {
    let mut r = 0;
    // SAFETY: the caller's duty; rows stay inside the extent.
    unsafe {
        while e.rows - r >= 4 {
            block_columns::<V, P, 4, 1>(a, x, e, r);
            r += 4;
        }
        while r < e.rows {
            block_columns::<V, P, 1, 4>(a, x, e, r);
            r += 1;
        }
    }
}

/// All rows of `A` with `M` input rows from `r` on, `N` at a time.
#[inline(always)]
unsafe fn block_columns<V: Vector, P: Panel, const M: usize, const N: usize>(
    a: BlockRows,
    x: InputRows,
    e: Extent,
    r: usize,
) {
    let mut c = 0;
    // SAFETY: the caller's duty.
    unsafe {
        while e.columns - c >= N {
            block_dots::<V, P, M, N>(a, x, e, (r, c));
            c += N;
        }
        while c < e.columns {
            block_dots::<V, P, M, 1>(a, x, e, (r, c));
            c += 1;
        }
    }
}

/// `N` rows of `A` with `M` input rows: a block is decoded once, and sums do not wait for each other.
#[inline(always)]
unsafe fn block_dots<V: Vector, P: Panel, const M: usize, const N: usize>(
    a: BlockRows,
    x: InputRows,
    e: Extent,
    (r, c): (usize, usize),
) {
    let row_bytes = a.k / PANEL * P::BYTES;
    // SAFETY: the caller's duty.
    unsafe {
        let xs: [*const f32; M] =
            std::array::from_fn(|m| x.float_row(e.first + r + m).cast_const());
        let rows: [*const u8; N] = std::array::from_fn(|n| a.at.add((c + n) * row_bytes));
        let mut sums = [[V::splat(0.0); M]; N];
        for block in 0..a.k / PANEL {
            for n in 0..N {
                let p = rows[n].add(block * P::BYTES);
                let (low, high) = P::load::<V>(p);
                let scale = V::splat(P::scale::<V>(p));
                for m in 0..M {
                    let x = xs[m].add(block * PANEL);
                    let first = V::mul(low, V::load(x));
                    let both = V::fma(high, V::load(x.add(LANES)), first);
                    sums[n][m] = V::fma(both, scale, sums[n][m]);
                }
            }
        }
        for (n, sums) in sums.into_iter().enumerate() {
            for (m, sum) in sums.into_iter().enumerate() {
                *e.out.add((r + m) * e.stride + c + n) = V::sum(sum);
            }
        }
    }
}

#[derive(Clone, Copy)]
enum PanelFormat {
    F32,
    F16,
    Bf16,
    Q8,
    Q4,
}

#[derive(Clone, Copy)]
struct Columns {
    b: *const u8,
    format: PanelFormat,
    rank: usize,
    gain: *const f32,
    bias: *const f32,
    first: usize,
    count: usize,
    rows: usize,
}

per_isa! {
    fn expand_columns(columns: Columns, u: (*const f32, usize), y: (*mut f32, usize)) = expand_with
}

#[inline(always)]
unsafe fn expand_with<V: Vector>(c: Columns, u: (*const f32, usize), y: (*mut f32, usize)) {
    // SAFETY: the caller's duty.
    unsafe {
        match c.format {
            PanelFormat::F32 => expand_rows::<V, InF32>(c, u, y),
            PanelFormat::F16 => expand_rows::<V, InF16>(c, u, y),
            PanelFormat::Bf16 => expand_rows::<V, InBf16>(c, u, y),
            PanelFormat::Q8 => expand_rows::<V, InQ8>(c, u, y),
            PanelFormat::Q4 => expand_rows::<V, InQ4>(c, u, y),
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
        // A strip may begin in the middle of a panel.
        if !c.first.is_multiple_of(PANEL) && c.count > 0 {
            panel_rows::<V, P, 1>(c, 0, u, y);
            i = LANES;
        }
        while c.count.saturating_sub(i) > PANEL {
            panel_rows::<V, P, 2>(c, i, u, y);
            i += 2 * PANEL;
        }
        if i < c.count {
            panel_rows::<V, P, 1>(c, i, u, y);
        }
    }
}

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
                let (low, high) = P::load::<V>(p);
                let u = V::splat(P::scale::<V>(p) * *u.add(r));
                sums[n][0] = V::fma(low, u, sums[n][0]);
                sums[n][1] = V::fma(high, u, sums[n][1]);
            }
        }
        for (half, sum) in sums.into_iter().flatten().enumerate() {
            let column = panel * PANEL + half * LANES;
            if column >= c.first + i && column < c.first + c.count {
                add_to::<V>(c, column, sum, y);
            }
        }
    }
}

/// `y = gain_out * y + sum + bias` for up to 16 columns.
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
        value = V::add(value, sum);
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
