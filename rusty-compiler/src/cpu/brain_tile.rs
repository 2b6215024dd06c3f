//! Products of rows of BF16 with inputs that are rounded to BF16, two at a time (`vdpbf16ps`, AVX-512 BF16); where there are tile
//! registers, [in those](super::amx_brains).
//!
//! Of each 32 values, `i` and `16 + i` are multiplied together, which is how [rows in twelve bits](super::short_rows) are decoded, and
//! plain rows are put in that order: results are the same to the bit whether rows are shortened or not, and whatever the number of
//! input rows. Limits: rows of whole chunks, as those that can be shortened are.

use super::brain_columns::Columns;
use super::float::SEGMENT;
use super::prefetch::{Ahead, Ask};
use super::quantize::InputRows;
use super::row_tiles::{Extent, Tiles, blocks, store_sums};
use super::short_rows::{CHUNK, HALF};
use super::short_tile::{CHUNK_WORDS, MANY_ROWS, Short};
use super::simd::small_floats::SmallFloats;
use super::simd::{Level, scalar};

/// Values of a vector of words.
const VALUES: usize = HALF / 2;

/// Rows of a matrix to multiply.
#[derive(Clone, Copy)]
pub(super) enum BrainRows<'a> {
    Short(Short<'a>),
    Plain(Plain),
}

/// Rows of `k` brain floats, from this byte on.
#[derive(Clone, Copy)]
pub(super) struct Plain {
    pub(super) at: *const u8,
    pub(super) k: usize,
    pub(super) ask: Ask,
}

/// `out[r * stride + c] = x[taken(first + r)] . w[c]`.
///
/// # Safety
/// `w` holds the extent's columns, `x` the rows as brain floats and memory for a whole tile of rows behind them, as
/// [`Inputs`](super::quantize::Inputs) have, `out` the results; the machine has AVX-512 BF16 where `level` is of
/// AVX-512.
pub(super) unsafe fn multiply(
    level: Level,
    w: BrainRows<'_>,
    x: InputRows,
    e: Extent,
    ahead: &mut Ahead,
) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c"
    )]
    unsafe fn avx512(w: BrainRows<'_>, x: InputRows, e: Extent, ahead: &mut Ahead) {
        // SAFETY: the features are enabled here; the rest is the caller's duty.
        unsafe { multiply_with::<super::simd::avx512::Avx512>(w, x, e, ahead) }
    }
    // SAFETY: the caller's duty.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512(w, x, e, ahead),
            #[cfg(target_arch = "x86_64")]
            Level::Amx => super::amx_brains::multiply(w, x, e, ahead),
            _ => multiply_with::<scalar::Scalar>(w, x, e, ahead),
        }
    }
}

#[inline(always)]
unsafe fn multiply_with<V: SmallFloats>(
    w: BrainRows<'_>,
    x: InputRows,
    e: Extent,
    ahead: &mut Ahead,
) {
    // SAFETY: the caller's duty; columns stay inside the extent.
    unsafe {
        match w {
            BrainRows::Plain(w) => blocks::<V, Chunks<Plain>>(Chunks(w), x, e, ahead),
            BrainRows::Short(w) if e.rows < MANY_ROWS => {
                blocks::<V, Chunks<Short<'_>>>(Chunks(w), x, e, ahead);
            }
            BrainRows::Short(w) => {
                let (at, k) = (w.words.cast_const(), w.matrix.k);
                let mut c = 0;
                while c < e.columns {
                    let some = w.decode_columns::<V>(e, c);
                    blocks::<V, Words>(Words { at, k }, x, some, ahead);
                    c += some.columns;
                }
            }
        }
    }
}

/// The sums of a tile: `M` input rows times `N` columns, added in the order of their values.
struct Sums<V: SmallFloats, const M: usize, const N: usize> {
    xs: [*const u8; M],
    sums: [[V::F; N]; M],
}

impl<V: SmallFloats, const M: usize, const N: usize> Sums<V, M, N> {
    #[inline(always)]
    unsafe fn new(x: InputRows, e: Extent, r: usize) -> Self {
        let mut xs = [std::ptr::null(); M];
        // SAFETY: the caller's duty.
        unsafe {
            for m in 0..M {
                xs[m] = x.brain_row(x.taken(e.first + r + m)).cast_const().cast();
            }
            let sums = [[V::splat(0.0); N]; M];
            Self { xs, sums }
        }
    }

    /// Adds 32 values of column `n`, those from `begin` on.
    #[inline(always)]
    unsafe fn add(&mut self, n: usize, begin: usize, words: V::B) {
        for m in 0..M {
            // SAFETY: the caller's duty.
            unsafe {
                let x = V::load_bytes(self.xs[m].add(2 * begin));
                self.sums[m][n] = V::dot_brains(self.sums[m][n], x, words);
            }
        }
    }

    /// The same of every column.
    #[inline(always)]
    unsafe fn add_columns(&mut self, begin: usize, words: [V::B; N]) {
        for m in 0..M {
            // SAFETY: the caller's duty.
            unsafe {
                let x = V::load_bytes(self.xs[m].add(2 * begin));
                for n in 0..N {
                    self.sums[m][n] = V::dot_brains(self.sums[m][n], x, words[n]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(&self, e: Extent, (r, c): (usize, usize), step: usize) {
        // SAFETY: the caller's duty.
        unsafe { store_sums::<V, M, N>(&self.sums, e, (r, c), step) }
    }
}

/// Rows that become words in registers.
#[derive(Clone, Copy)]
struct Chunks<W>(W);

impl<W: Columns> Tiles for Chunks<W> {
    fn ask(self) -> Ask {
        self.0.ask()
    }

    #[inline(always)]
    unsafe fn tile<V: SmallFloats, const M: usize, const N: usize, const FIRST: bool>(
        self,
        x: InputRows,
        e: Extent,
        (r, c): (usize, usize),
        step: usize,
        ahead: &mut Ahead,
    ) {
        let distance = self.0.ask().distance(N).filter(|_| FIRST);
        let mut rows = [self.0.row(c); N];
        for n in 1..N {
            rows[n] = self.0.row(c + n * step);
        }
        // SAFETY: the caller's duty; rows are whole chunks.
        unsafe {
            let table = self.0.table::<V>();
            let mut sums = Sums::<V, M, N>::new(x, e, r);
            for begin in (0..self.0.k()).step_by(CHUNK) {
                if FIRST && begin.is_multiple_of(SEGMENT) {
                    ahead.step();
                }
                for n in 0..N {
                    let words = self.0.chunk::<V>(&mut rows[n], table, begin, distance);
                    for i in 0..CHUNK_WORDS {
                        sums.add(n, begin + i * VALUES, words[i]);
                    }
                }
            }
            sums.store(e, (r, c), step);
        }
    }
}

/// Rows that were decoded to words.
#[derive(Clone, Copy)]
struct Words {
    at: *const u8,
    k: usize,
}

impl Tiles for Words {
    fn ask(self) -> Ask {
        Ask::Nothing
    }

    #[inline(always)]
    unsafe fn tile<V: SmallFloats, const M: usize, const N: usize, const FIRST: bool>(
        self,
        x: InputRows,
        e: Extent,
        (r, c): (usize, usize),
        step: usize,
        ahead: &mut Ahead,
    ) {
        // SAFETY: the caller's duty; rows are whole chunks.
        unsafe {
            let mut sums = Sums::<V, M, N>::new(x, e, r);
            for begin in (0..self.k).step_by(VALUES) {
                if FIRST && begin.is_multiple_of(SEGMENT) {
                    ahead.step();
                }
                let mut words = [V::load_bytes(self.at.add((c * self.k + begin) * 2)); N];
                for n in 1..N {
                    words[n] = V::load_bytes(self.at.add(((c + n * step) * self.k + begin) * 2));
                }
                sums.add_columns(begin, words);
            }
            sums.store(e, (r, c), step);
        }
    }
}
