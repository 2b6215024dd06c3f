//! Rows of an adapter's `A` in blocks of 32 codes, times input rows: in integers where the inputs are quantized and
//! the codes are bytes, else decoded in registers.
//!
//! The order of additions of a result does not depend on how many rows share a tile.

use super::float::Extent;
use super::int8_table;
use super::quantize::InputRows;
use super::simd::{LANES, Vector, per_isa};
use super::stored_panel::{InQ4, InQ8, Panel};
use crate::delta_table::PANEL;

/// Rows of Q8_0 or Q4_0 blocks.
#[derive(Clone, Copy)]
pub(super) struct BlockRows {
    pub(super) at: *const u8,
    pub(super) k: usize,
    /// Q8_0.
    pub(super) int8: bool,
}

/// A way to multiply rows of blocks.
pub(super) trait Dots {
    /// `N` rows of `A` from `c` on with `M` input rows from `r` on.
    unsafe fn dots<V: Vector, const M: usize, const N: usize>(
        a: BlockRows,
        x: InputRows,
        e: Extent,
        place: (usize, usize),
    );
}

per_isa! {
    /// `out[r * stride + c] = x[first + r] . a[c]`.
    ///
    /// # Safety
    /// `a` holds `columns` rows of `k` codes, a whole number of blocks; the inputs are filled.
    pub(super) fn multiply(a: BlockRows, x: InputRows, extent: Extent) = multiply_with
}

#[inline(always)]
unsafe fn multiply_with<V: Vector>(a: BlockRows, x: InputRows, e: Extent) {
    // SAFETY: the caller's duty.
    unsafe {
        match a.int8 {
            true if x.quantized => all_rows::<V, int8_table::Integers>(a, x, e),
            true => all_rows::<V, Decoded<InQ8>>(a, x, e),
            false => all_rows::<V, Decoded<InQ4>>(a, x, e),
        }
    }
}

#[inline(always)]
unsafe fn all_rows<V: Vector, D: Dots>(a: BlockRows, x: InputRows, e: Extent) {
    let mut r = 0;
    // SAFETY: the caller's duty; rows stay inside the extent.
    unsafe {
        while e.rows - r >= 4 {
            all_columns::<V, D, 4, 2>(a, x, e, r);
            r += 4;
        }
        while r < e.rows {
            all_columns::<V, D, 1, 8>(a, x, e, r);
            r += 1;
        }
    }
}

/// All rows of `A` with `M` input rows from `r` on, `N` at a time.
#[inline(always)]
unsafe fn all_columns<V: Vector, D: Dots, const M: usize, const N: usize>(
    a: BlockRows,
    x: InputRows,
    e: Extent,
    r: usize,
) {
    let mut c = 0;
    // SAFETY: the caller's duty.
    unsafe {
        while e.columns - c >= N {
            D::dots::<V, M, N>(a, x, e, (r, c));
            c += N;
        }
        while c < e.columns {
            D::dots::<V, M, 1>(a, x, e, (r, c));
            c += 1;
        }
    }
}

/// A block is decoded once for all input rows, and sums do not wait for each other.
struct Decoded<P>(std::marker::PhantomData<P>);

impl<P: Panel> Dots for Decoded<P> {
    #[inline(always)]
    unsafe fn dots<V: Vector, const M: usize, const N: usize>(
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
            store_sums::<V, M, N>(sums, e, (r, c));
        }
    }
}

/// Stores the sums over lanes of `N` rows of `A` with `M` input rows.
#[inline(always)]
pub(super) unsafe fn store_sums<V: Vector, const M: usize, const N: usize>(
    sums: [[V::F; M]; N],
    e: Extent,
    (r, c): (usize, usize),
) {
    for (n, sums) in sums.into_iter().enumerate() {
        for (m, sum) in sums.into_iter().enumerate() {
            // SAFETY: the caller's duty.
            unsafe { *e.out.add((r + m) * e.stride + c + n) = V::sum(sum) };
        }
    }
}
