//! Products with matrices that are read row by row: which tiles they are cut into.
//!
//! A tile's columns are spread evenly over the extent, so that each is one of several long streams far apart: memory
//! answers those faster than as many rows side by side. Cores that read ahead on their own do so best for few.

use super::prefetch::{Ahead, Ask};
use super::quantize::InputRows;
use super::simd::Vector;
use super::simd::small_floats::SmallFloats;
use std::sync::atomic::{Ordering, compiler_fence};

/// Columns of one row's tile, most of whose streams are asked for ahead.
pub(super) const ROW_STREAMS: usize = 8;
/// The same where that is [left to cores](Ask::LeftToCores), found by trying on a Zen 4.
pub(super) const UNASKED_STREAMS: usize = 2;

/// The product's extents and where it goes: `out[r * stride + c]`.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) out: *mut f32,
    pub(super) stride: usize,
}

/// A matrix whose rows are multiplied tile by tile.
pub(super) trait Tiles: Copy {
    /// What is asked for while it is read.
    fn ask(self) -> Ask;

    /// `M` input rows from `r` on times `N` rows of the matrix, every `step`-th from `c` on; the `FIRST` rows' pass asks for
    /// what comes.
    ///
    /// # Safety
    /// Rows and columns are inside the extent, which is as [`blocks`] wants it.
    unsafe fn tile<V: SmallFloats, const M: usize, const N: usize, const FIRST: bool>(
        self,
        x: InputRows,
        extent: Extent,
        place: (usize, usize),
        step: usize,
        ahead: &mut Ahead,
    );
}

/// All tiles of a product.
///
/// # Safety
/// The matrix holds the extent's columns, `x` the rows, `out` the results.
#[inline(always)]
pub(super) unsafe fn blocks<V: SmallFloats, W: Tiles>(
    w: W,
    x: InputRows,
    e: Extent,
    ahead: &mut Ahead,
) {
    let mut r = 0;
    // SAFETY: the caller's duty; tiles stay inside the extent.
    unsafe {
        if e.rows == 1 && matches!(w.ask(), Ask::LeftToCores) {
            return columns::<V, W, 1, UNASKED_STREAMS>(w, x, e, (0, 1), ahead);
        }
        if V::FLOAT_TILE == (6, 4) {
            while e.rows - r >= 6 {
                columns::<V, W, 6, 4>(w, x, e, (r, 6), ahead);
                r += 6;
            }
            while e.rows - r >= 2 {
                columns::<V, W, 2, 8>(w, x, e, (r, 2), ahead);
                r += 2;
            }
            if r < e.rows {
                columns::<V, W, 1, ROW_STREAMS>(w, x, e, (r, 1), ahead);
            }
        } else {
            // Columns of small tiles come from further away than rows: two tiles take them at once.
            while V::FLOAT_TILE.0 >= 2 && e.rows - r >= 2 {
                let rows = if e.rows - r >= 4 { 4 } else { 2 };
                columns::<V, W, 2, 3>(w, x, e, (r, rows), ahead);
                r += rows;
            }
            while r < e.rows {
                columns::<V, W, 1, 4>(w, x, e, (r, 1), ahead);
                r += 1;
            }
        }
    }
}

/// All columns for some tiles of `M` rows from `r` on.
#[inline(always)]
unsafe fn columns<V: SmallFloats, W: Tiles, const M: usize, const N: usize>(
    w: W,
    x: InputRows,
    e: Extent,
    (r, rows): (usize, usize),
    ahead: &mut Ahead,
) {
    // SAFETY: the caller's duty.
    unsafe {
        match r {
            0 => tiles::<V, W, M, N, true>(w, x, e, (r, rows), ahead),
            _ => tiles::<V, W, M, N, false>(w, x, e, (r, rows), ahead),
        }
    }
}

/// The same; the `FIRST` rows' pass over the weights asks for what comes.
#[inline(always)]
unsafe fn tiles<V: SmallFloats, W: Tiles, const M: usize, const N: usize, const FIRST: bool>(
    w: W,
    x: InputRows,
    e: Extent,
    (r, rows): (usize, usize),
    ahead: &mut Ahead,
) {
    let step = e.columns / N;
    let others = (r + M..r + rows).step_by(M);
    // SAFETY: the caller's duty; columns are below `N step`, or behind those.
    unsafe {
        for c in 0..step {
            w.tile::<V, M, N, FIRST>(x, e, (r, c), step, ahead);
            for r in others.clone() {
                w.tile::<V, M, N, false>(x, e, (r, c), step, ahead);
            }
        }
        for c in N * step..e.columns {
            w.tile::<V, M, 1, FIRST>(x, e, (r, c), 1, ahead);
            for r in others.clone() {
                w.tile::<V, M, 1, false>(x, e, (r, c), 1, ahead);
            }
        }
    }
}

/// The sums of a tile: `M` input rows times `N` columns, added in the order of their values.
pub(super) struct Sums<V: SmallFloats, const M: usize, const N: usize> {
    xs: [*const f32; M],
    sums: [[V::F; N]; M],
}

impl<V: SmallFloats, const M: usize, const N: usize> Sums<V, M, N> {
    #[inline(always)]
    pub(super) unsafe fn new(x: InputRows, e: Extent, r: usize) -> Self {
        let mut xs = [std::ptr::null(); M];
        // SAFETY: the caller's duty.
        unsafe {
            for m in 0..M {
                xs[m] = x.float_row(x.taken(e.first + r + m)).cast_const();
            }
            let sums = [[V::splat(0.0); N]; M];
            Self { xs, sums }
        }
    }

    /// Whether the register file holds a tile's sums, a column and little else. One row and four columns are a case of it: on
    /// AVX2 the columns and their sums would be all sixteen registers.
    pub(super) const CROWDED: bool = V::FLOAT_TILE.0 < 6;

    /// [`Sums::add`] with inputs that are read for this column alone. Otherwise they would be kept in registers for the next
    /// one, where there are none to spare: what is kept then goes to the stack and back.
    #[inline(always)]
    pub(super) unsafe fn add_alone(&mut self, n: usize, begin: usize, b: V::F) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the caller's duty.
        unsafe { self.add(n, begin, b) }
    }

    /// Adds sixteen values of column `n`, those from `begin` on.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, n: usize, begin: usize, b: V::F) {
        for m in 0..M {
            // SAFETY: the caller's duty.
            unsafe {
                let a = V::load(self.xs[m].add(begin));
                self.sums[m][n] = V::fma(a, b, self.sums[m][n]);
            }
        }
    }

    /// The same of every column.
    #[inline(always)]
    pub(super) unsafe fn add_columns(&mut self, begin: usize, b: [V::F; N]) {
        for m in 0..M {
            // SAFETY: the caller's duty.
            unsafe {
                let a = V::load(self.xs[m].add(begin));
                for n in 0..N {
                    self.sums[m][n] = V::fma(a, b[n], self.sums[m][n]);
                }
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn store(&self, e: Extent, (r, c): (usize, usize), step: usize) {
        // SAFETY: the caller's duty.
        unsafe { store_sums::<V, M, N>(&self.sums, e, (r, c), step) }
    }
}

/// Stores the sums over lanes of a tile's sums.
///
/// # Safety
/// As for [`Tiles::tile`].
#[inline(always)]
pub(super) unsafe fn store_sums<V: Vector, const M: usize, const N: usize>(
    sums: &[[V::F; N]; M],
    e: Extent,
    (r, c): (usize, usize),
    step: usize,
) {
    for m in 0..M {
        for n in 0..N {
            // SAFETY: the caller's duty.
            unsafe { *e.out.add((r + m) * e.stride + c + n * step) = V::sum(sums[m][n]) };
        }
    }
}
