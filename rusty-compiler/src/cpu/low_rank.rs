//! The two small products of an adapter at a site: `u = scale (A x)` and `y = gain y + B u + bias`.
//!
//! `A` is read along its rows, `B` in panels of 32 outputs, so that the second product needs no sum over lanes.
//! Block formats are decoded in registers.

use super::float::{self, Extent, FloatKind, FloatRows, InBf16, InF16, InF32, Stored};
use super::quantize::InputRows;
use super::simd::{LANES, Level, Vector, per_isa};
use crate::delta_table::{DeltaTable, PANEL};
use crate::slots::SiteDelta;
use rusty_loader::Format;
use std::sync::Arc;

/// Bytes of a block's scale.
const SCALE_BYTES: usize = 2;

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

/// Adds the delta to columns `first ..` of a row: `y = gain_out * y + B u + bias`.
///
/// # Safety
/// `first` is a multiple of 16; `y` holds `count` columns rounded up to 16; `u` holds `rank` values; the delta
/// fits its site.
pub(super) unsafe fn expand(
    level: Level,
    delta: &SiteDelta,
    u: *const f32,
    (first, count): (usize, usize),
    y: *mut f32,
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
    let row_bytes = a.k / PANEL * P::BYTES;
    for c in 0..e.columns {
        let at = a.at.wrapping_add(c * row_bytes);
        let mut r = 0;
        // SAFETY: the caller's duty; rows stay inside the extent.
        unsafe {
            while e.rows - r >= 4 {
                block_dots::<V, P, 4>(at, a.k, x, e, (r, c));
                r += 4;
            }
            while r < e.rows {
                block_dots::<V, P, 1>(at, a.k, x, e, (r, c));
                r += 1;
            }
        }
    }
}

/// One row of `A` with `M` input rows, so that a block is decoded once.
#[inline(always)]
unsafe fn block_dots<V: Vector, P: Panel, const M: usize>(
    at: *const u8,
    k: usize,
    x: InputRows,
    e: Extent,
    (r, c): (usize, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let xs: [*const f32; M] =
            std::array::from_fn(|m| x.float_row(e.first + r + m).cast_const());
        let mut sums = [V::splat(0.0); M];
        for block in 0..k / PANEL {
            let p = at.add(block * P::BYTES);
            let (low, high) = (P::load::<V>(p, 0), P::load::<V>(p, 1));
            for m in 0..M {
                let x = xs[m].add(block * PANEL);
                let sum = V::fma(low, V::load(x), sums[m]);
                sums[m] = V::fma(high, V::load(x.add(LANES)), sum);
            }
        }
        for (m, sum) in sums.into_iter().enumerate() {
            *e.out.add((r + m) * e.stride + c) = V::sum(sum);
        }
    }
}

/// A row of 32 stored values, read as two vectors.
trait Panel {
    const BYTES: usize;
    /// Half `0` or `1`.
    unsafe fn load<V: Vector>(p: *const u8, half: usize) -> V::F;
}

macro_rules! float_panel {
    ($kind:ty) => {
        impl Panel for $kind {
            const BYTES: usize = PANEL * <$kind as Stored>::BYTES;
            #[inline(always)]
            unsafe fn load<V: Vector>(p: *const u8, half: usize) -> V::F {
                // SAFETY: the caller's duty.
                unsafe {
                    let p = p.add(half * LANES * <$kind as Stored>::BYTES);
                    <$kind as Stored>::load::<V>(p)
                }
            }
        }
    };
}
float_panel!(InF32);
float_panel!(InF16);
float_panel!(InBf16);

struct InQ8;
struct InQ4;

impl Panel for InQ8 {
    const BYTES: usize = SCALE_BYTES + PANEL;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8, half: usize) -> V::F {
        // SAFETY: the caller's duty.
        unsafe {
            let codes = V::load_i8(p.add(SCALE_BYTES + half * LANES).cast());
            V::mul(codes, V::splat(block_scale(p)))
        }
    }
}

impl Panel for InQ4 {
    const BYTES: usize = SCALE_BYTES + PANEL / 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8, half: usize) -> V::F {
        let mut codes = [0u8; LANES];
        // SAFETY: the caller's duty.
        unsafe {
            for (i, code) in codes.iter_mut().enumerate() {
                *code = *p.add(SCALE_BYTES + i) >> (4 * half) & 15;
            }
            let codes = V::sub(V::load_u8(codes.as_ptr()), V::splat(8.0));
            V::mul(codes, V::splat(block_scale(p)))
        }
    }
}

/// The half-precision scale in front of a block, exact for all finite values.
#[inline(always)]
unsafe fn block_scale(p: *const u8) -> f32 {
    // SAFETY: the caller's duty.
    let bits = u32::from(unsafe { p.cast::<u16>().read_unaligned() });
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
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
}

per_isa! {
    fn expand_columns(columns: Columns, u: *const f32, y: *mut f32) = expand_with
}

#[inline(always)]
unsafe fn expand_with<V: Vector>(c: Columns, u: *const f32, y: *mut f32) {
    // SAFETY: the caller's duty.
    unsafe {
        match c.format {
            PanelFormat::F32 => expand_panels::<V, InF32>(c, u, y),
            PanelFormat::F16 => expand_panels::<V, InF16>(c, u, y),
            PanelFormat::Bf16 => expand_panels::<V, InBf16>(c, u, y),
            PanelFormat::Q8 => expand_panels::<V, InQ8>(c, u, y),
            PanelFormat::Q4 => expand_panels::<V, InQ4>(c, u, y),
        }
    }
}

#[inline(always)]
unsafe fn expand_panels<V: Vector, P: Panel>(c: Columns, u: *const f32, y: *mut f32) {
    // SAFETY: the caller's duty.
    unsafe {
        for i in (0..c.count).step_by(LANES) {
            let (n, column) = ((c.count - i).min(LANES), c.first + i);
            let mut sum = V::load(y.add(i));
            if !c.gain.is_null() {
                sum = V::mul(sum, lanes::<V>(c.gain.add(column), n));
            }
            let panel = c.b.wrapping_add(column / PANEL * c.rank * P::BYTES);
            let half = column % PANEL / LANES;
            for r in 0..c.rank {
                let b = P::load::<V>(panel.add(r * P::BYTES), half);
                sum = V::fma(b, V::splat(*u.add(r)), sum);
            }
            if !c.bias.is_null() {
                sum = V::add(sum, lanes::<V>(c.bias.add(column), n));
            }
            V::store(y.add(i), sum);
        }
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
