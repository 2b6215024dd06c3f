//! Float tiles: some input rows times some rows of an F32, F16 or BF16 matrix, in single precision.
//!
//! Both operands are read along `k`, sixteen lanes at a time, with one accumulator per pair and one sum over
//! lanes at the end; that order is the same for every tile shape. Weights are converted in registers.

use super::prefetch::{Ahead, ask_stream};
use super::quantize::InputRows;
use super::simd::{LANES, Vector, per_isa};

/// Stored precision of a float matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatKind {
    F32,
    F16,
    Bf16,
}

impl FloatKind {
    /// Bytes per value.
    pub(super) fn bytes(self) -> usize {
        match self {
            FloatKind::F32 => 4,
            FloatKind::F16 | FloatKind::Bf16 => 2,
        }
    }
}

/// Rows of a row-major float matrix.
#[derive(Clone, Copy)]
pub(super) struct FloatRows {
    pub(super) kind: FloatKind,
    /// First byte of the first row.
    pub(super) at: *const u8,
    pub(super) k: usize,
}

pub(super) trait Stored {
    const BYTES: usize;
    unsafe fn load<V: Vector>(p: *const u8) -> V::F;
}

pub(super) struct InF32;
pub(super) struct InF16;
pub(super) struct InBf16;

impl Stored for InF32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> V::F {
        // SAFETY: the caller's duty.
        unsafe { V::load(p.cast()) }
    }
}

impl Stored for InF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> V::F {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(p.cast()) }
    }
}

impl Stored for InBf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> V::F {
        // SAFETY: the caller's duty.
        unsafe { V::load_bf16(p.cast()) }
    }
}

/// Values along `k` between two looks ahead.
const SEGMENT: usize = 16 * LANES;

/// The product's extents and where it goes: `out[r * stride + c]`.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) out: *mut f32,
    pub(super) stride: usize,
}

/// Steps at which [`multiply`] asks for memory ahead, about.
pub(super) fn steps(k: usize, rows: usize, columns: usize) -> usize {
    rows.div_ceil(6) * columns.div_ceil(4) * k.div_ceil(SEGMENT)
}

per_isa! {
    /// `out[r * stride + c] = x[first + r] . w[c]`.
    ///
    /// # Safety
    /// `w` holds `columns` rows, `x` the rows, `out` the results.
    pub(super) fn multiply(w: FloatRows, x: InputRows, extent: Extent, ahead: &mut Ahead) = multiply_with
}

#[inline(always)]
unsafe fn multiply_with<V: Vector>(w: FloatRows, x: InputRows, extent: Extent, ahead: &mut Ahead) {
    // SAFETY: the caller's duty.
    unsafe {
        match w.kind {
            FloatKind::F32 => blocks::<V, InF32>(w, x, extent, ahead),
            FloatKind::F16 => blocks::<V, InF16>(w, x, extent, ahead),
            FloatKind::Bf16 => blocks::<V, InBf16>(w, x, extent, ahead),
        }
    }
}

#[inline(always)]
unsafe fn blocks<V: Vector, S: Stored>(w: FloatRows, x: InputRows, e: Extent, ahead: &mut Ahead) {
    let mut r = 0;
    // SAFETY: the caller's duty; tiles stay inside the extent.
    unsafe {
        if V::FLOAT_TILE == (6, 4) {
            while e.rows - r >= 6 {
                columns::<V, S, 6, 4>(w, x, e, r, ahead);
                r += 6;
            }
            while e.rows - r >= 2 {
                columns::<V, S, 2, 8>(w, x, e, r, ahead);
                r += 2;
            }
            if r < e.rows {
                columns::<V, S, 1, 8>(w, x, e, r, ahead);
            }
        } else {
            while V::FLOAT_TILE.0 >= 2 && e.rows - r >= 2 {
                columns::<V, S, 2, 3>(w, x, e, r, ahead);
                r += 2;
            }
            while r < e.rows {
                columns::<V, S, 1, 4>(w, x, e, r, ahead);
                r += 1;
            }
        }
    }
}

/// All columns for `M` rows from `r` on.
#[inline(always)]
unsafe fn columns<V: Vector, S: Stored, const M: usize, const N: usize>(
    w: FloatRows,
    x: InputRows,
    e: Extent,
    r: usize,
    ahead: &mut Ahead,
) {
    let mut c = 0;
    // SAFETY: the caller's duty.
    unsafe {
        while e.columns - c >= N {
            tile::<V, S, M, N>(w, x, e, (r, c), ahead);
            c += N;
        }
        while c < e.columns {
            tile::<V, S, M, 1>(w, x, e, (r, c), ahead);
            c += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<V: Vector, S: Stored, const M: usize, const N: usize>(
    w: FloatRows,
    x: InputRows,
    e: Extent,
    (r, c): (usize, usize),
    ahead: &mut Ahead,
) {
    // SAFETY: the caller's duty; weights past `k` are not read, inputs there are zero.
    unsafe {
        let mut xs = [std::ptr::null::<f32>(); M];
        for m in 0..M {
            xs[m] = x.float_row(x.taken(e.first + r + m)).cast_const();
        }
        let ws: [*const u8; N] = std::array::from_fn(|n| w.at.add((c + n) * w.k * S::BYTES));
        let mut sums = [[V::splat(0.0); N]; M];
        let whole = w.k / LANES * LANES;
        let mut i = 0;
        while i < whole {
            // Of the first rows' pass over the weights: their next tile lies behind this one.
            if r == 0 && (i * S::BYTES).is_multiple_of(64) {
                ask_stream(w.at.wrapping_add(c * w.k * S::BYTES + N * i * S::BYTES), N);
            }
            if i.is_multiple_of(SEGMENT) {
                ahead.step();
            }
            let b: [V::F; N] = std::array::from_fn(|n| S::load::<V>(ws[n].add(i * S::BYTES)));
            for m in 0..M {
                let a = V::load(xs[m].add(i));
                for n in 0..N {
                    sums[m][n] = V::fma(a, b[n], sums[m][n]);
                }
            }
            i += LANES;
        }
        if i < w.k {
            for n in 0..N {
                let mut last = [0u8; LANES * 4];
                let bytes = (w.k - i) * S::BYTES;
                std::ptr::copy_nonoverlapping(ws[n].add(i * S::BYTES), last.as_mut_ptr(), bytes);
                let b = S::load::<V>(last.as_ptr());
                for m in 0..M {
                    sums[m][n] = V::fma(V::load(xs[m].add(i)), b, sums[m][n]);
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                *e.out.add((r + m) * e.stride + c + n) = V::sum(sums[m][n]);
            }
        }
    }
}
