//! Rows of an adapter's `A` in blocks of 32 codes of four bits, times input rows, decoded in registers.
//!
//! The order of additions of a result does not depend on how many rows share a tile.

use super::table_values::{InQ4, Panel};
use crate::cpu::quantize::InputRows;
use crate::cpu::row_tiles::Extent;
use crate::cpu::simd::{LANES, Vector, per_isa};
use crate::delta_table::PANEL;

/// Rows of Q4_0 blocks.
#[derive(Clone, Copy)]
pub(super) struct Int4Rows {
    pub(super) at: *const u8,
    pub(super) k: usize,
}

per_isa! {
    /// `out[r * stride + c] = x[first + r] . a[c]`.
    ///
    /// # Safety
    /// `a` holds `columns` rows of `k` codes, a whole number of blocks; the inputs are filled.
    pub(super) fn multiply(a: Int4Rows, x: InputRows, extent: Extent) = all_rows
}

#[inline(always)]
unsafe fn all_rows<V: Vector>(a: Int4Rows, x: InputRows, e: Extent) {
    let mut r = 0;
    // SAFETY: the caller's duty; rows stay inside the extent.
    unsafe {
        while e.rows - r >= 4 {
            all_columns::<V, 4, 2>(a, x, e, r);
            r += 4;
        }
        while r < e.rows {
            all_columns::<V, 1, 8>(a, x, e, r);
            r += 1;
        }
    }
}

/// All rows of `A` with `M` input rows from `r` on, `N` at a time.
#[inline(always)]
unsafe fn all_columns<V: Vector, const M: usize, const N: usize>(
    a: Int4Rows,
    x: InputRows,
    e: Extent,
    r: usize,
) {
    let mut c = 0;
    // SAFETY: the caller's duty.
    unsafe {
        while e.columns - c >= N {
            dots::<V, M, N>(a, x, e, (r, c));
            c += N;
        }
        while c < e.columns {
            dots::<V, M, 1>(a, x, e, (r, c));
            c += 1;
        }
    }
}

/// A block is decoded once for all input rows, and sums do not wait for each other.
#[inline(always)]
unsafe fn dots<V: Vector, const M: usize, const N: usize>(
    a: Int4Rows,
    x: InputRows,
    e: Extent,
    (r, c): (usize, usize),
) {
    let row_bytes = a.k / PANEL * InQ4::BYTES;
    // SAFETY: the caller's duty.
    unsafe {
        let xs: [*const f32; M] =
            std::array::from_fn(|m| x.float_row(x.taken(e.first + r + m)).cast_const());
        let rows: [*const u8; N] = std::array::from_fn(|n| a.at.add((c + n) * row_bytes));
        let mut sums = [[V::splat(0.0); M]; N];
        for block in 0..a.k / PANEL {
            for n in 0..N {
                let p = rows[n].add(block * InQ4::BYTES);
                let (low, high) = InQ4::load::<V>(p);
                let scale = V::splat(InQ4::scale::<V>(p));
                for m in 0..M {
                    let x = xs[m].add(block * PANEL);
                    let first = V::mul(low, V::load(x));
                    let both = V::fma(high, V::load(x.add(LANES)), first);
                    sums[n][m] = V::fma(both, scale, sums[n][m]);
                }
            }
        }
        for n in 0..N {
            for m in 0..M {
                *e.out.add((r + m) * e.stride + c + n) = V::sum(sums[n][m]);
            }
        }
    }
}
