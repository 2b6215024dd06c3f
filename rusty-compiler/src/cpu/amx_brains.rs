//! Products of BF16 on AMX's tile registers (Intel SDM, TDPBF16PS), sixteen columns and 32 values at a time.
//!
//! Weights are made words a chunk of sixteen columns at a time, while the chunk before is multiplied, over all of an extent: memory is
//! read all the time, and a core does not wait for the last of many products to end before it reads on.
//!
//! Of *few* rows of inputs each is a single column of the second operand, and the weights, as they lie, are the first one. Of *many*
//! rows sixteen are the first operand, and the weights are the second one, where sixteen columns' pairs of values are a row.
//!
//! The instruction adds the products of the first values of all pairs, of the second ones, then both to the sum, whatever the number of
//! rows and columns, and which operand is which changes no product. So an output is the same to the bit alone and beside others, and one
//! row is multiplied here as well, since nothing else adds in that order. Limits: those of [`brain_tile`](super::brain_tile); numbers
//! too small to be normal count as zero.

use super::amx_brain_registers::{FEW, MANY, PAIR, SUMS, add_few, add_many, store, zero};
use super::amx_registers::{ROW, release};
use super::brain_columns::Columns;
use super::brain_tile::BrainRows;
use super::float::SEGMENT;
use super::prefetch::{Ahead, Ask};
use super::quantize::InputRows;
use super::row_tiles::Extent;
use super::short_rows::CHUNK;
use super::short_tile::CHUNK_WORDS;
use super::simd::avx512::{Avx512 as V, transposed};
use super::simd::small_floats::SmallFloats;
use super::simd::{LANES, Vector};
use super::tile::TILE_ROWS;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Bytes of a column's words of a chunk.
const COLUMN: usize = CHUNK_WORDS * ROW;

/// `out[r * stride + c] = x[taken(first + r)] . w[c]`.
///
/// # Safety
/// The machine has AVX-512 and AMX for brain floats; `w` holds the extent's columns, `x` the rows as brain floats and
/// memory for a whole tile of rows behind them, `out` the results.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn multiply(w: BrainRows<'_>, x: InputRows, e: Extent, ahead: &mut Ahead) {
    // SAFETY: the caller's duty; no compiled code uses the registers.
    unsafe {
        match w {
            BrainRows::Plain(w) => blocks(w, x, e, ahead),
            BrainRows::Short(w) => blocks(w, x, e, ahead),
        }
        release();
    }
}

/// All rows, as many together as there are registers for their sums.
#[inline(always)]
unsafe fn blocks<W: Columns>(w: W, x: InputRows, e: Extent, ahead: &mut Ahead) {
    // Rows that are listed lie anywhere.
    let few = e.rows <= SUMS || !x.taken.is_null();
    let config = if few { &FEW } else { &MANY };
    let most = if few { SUMS } else { SUMS * TILE_ROWS };
    // SAFETY: the caller's duty.
    unsafe {
        config.set_up();
        for r in (0..e.rows).step_by(most) {
            let some = Extent {
                first: e.first + r,
                rows: most.min(e.rows - r),
                out: e.out.add(r * e.stride),
                ..e
            };
            match few {
                true => few_rows(w, x, some, ahead),
                false => many_rows(w, x, some, ahead),
            }
        }
    }
}

/// `$do` with the constant `$make` that `$n`, a number of registers, is.
macro_rules! with_registers {
    ($n:expr, $make:ident => $do:expr) => {
        match $n {
            1 => with_registers!(@ 1, $make => $do),
            2 => with_registers!(@ 2, $make => $do),
            3 => with_registers!(@ 3, $make => $do),
            4 => with_registers!(@ 4, $make => $do),
            5 => with_registers!(@ 5, $make => $do),
            _ => with_registers!(@ 6, $make => $do),
        }
    };
    (@ $n:literal, $make:ident => $do:expr) => {{
        const $make: usize = $n;
        $do
    }};
}

#[inline(always)]
unsafe fn few_rows<W: Columns>(w: W, x: InputRows, e: Extent, ahead: &mut Ahead) {
    // SAFETY: the caller's duty.
    unsafe { with_registers!(e.rows, N => columns(w, Few::<N>::new(x, e.first), e, ahead)) }
}

#[inline(always)]
unsafe fn many_rows<W: Columns>(w: W, x: InputRows, e: Extent, ahead: &mut Ahead) {
    let first = x.brain_row(e.first).cast_const().cast();
    let stride = x.brain_row(1).addr() - x.brain_row(0).addr();
    let registers = e.rows.div_ceil(TILE_ROWS);
    // SAFETY: the caller's duty.
    unsafe { with_registers!(registers, N => columns(w, Many::<N> { first, stride }, e, ahead)) }
}

/// Sixteen columns of an extent or fewer: the first one, from one to the next, how many.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    step: usize,
    count: usize,
}

impl Place {
    /// Place `i` of an extent.
    fn new(i: usize, e: Extent, spread: bool) -> Self {
        let step = e.columns / LANES;
        match i < step {
            true if spread => Place {
                first: i,
                step,
                count: LANES,
            },
            _ => Place {
                first: i * LANES,
                step: 1,
                count: LANES.min(e.columns - i * LANES),
            },
        }
    }

    /// Column `n` of sixteen. Those that are not there are the last one again, and nobody reads their sums.
    fn column(self, n: usize) -> usize {
        self.first + n.min(self.count - 1) * self.step
    }
}

/// Words of a chunk of sixteen columns.
#[repr(C, align(64))]
struct Words([MaybeUninit<u8>; LANES * COLUMN]);

impl Words {
    fn new() -> Self {
        Self([MaybeUninit::uninit(); LANES * COLUMN])
    }

    fn at(&self, byte: usize) -> *const u8 {
        self.0.as_ptr().wrapping_add(byte).cast()
    }

    fn at_mut(&mut self, byte: usize) -> *mut u8 {
        self.0.as_mut_ptr().wrapping_add(byte).cast()
    }

    /// Makes rows of the columns: each has a pair of values of all of them.
    #[inline(always)]
    unsafe fn turn(&self, to: &mut Words) {
        for i in 0..CHUNK_WORDS {
            // SAFETY: the caller has AVX-512.
            unsafe {
                let mut columns = [_mm512_setzero_si512(); LANES];
                for n in 0..LANES {
                    columns[n] = V::load_bytes(self.at(n * COLUMN + i * ROW));
                }
                let rows = transposed(columns);
                for n in 0..LANES {
                    V::store_bytes(to.at_mut((i * LANES + n) * ROW), rows[n]);
                }
            }
        }
    }
}

/// Rows of inputs, and how they are multiplied.
trait Rows: Copy {
    /// Whether they are the first operand. The weights' order is then another one than theirs, and columns are neighbours, so
    /// that sums are stored as they are; otherwise they are far apart, each one of several long streams.
    const MANY: bool;

    /// Adds the products of the chunk from value `begin` on.
    unsafe fn add(self, words: &Words, begin: usize);

    /// Stores the sums of some columns.
    unsafe fn store(self, e: Extent, place: Place);
}

/// All columns.
#[inline(always)]
unsafe fn columns<W: Columns, R: Rows>(w: W, rows: R, e: Extent, ahead: &mut Ahead) {
    let (mut words, mut read) = ([Words::new(), Words::new()], Words::new());
    let (mut made, mut last) = (0, None);
    let places = e.columns.div_ceil(LANES);
    // SAFETY: the caller's duty.
    unsafe {
        let table = w.table::<V>();
        zero();
        for i in 0..places {
            let place = Place::new(i, e, !R::MANY);
            // Neighbours end where the next ones begin.
            let distance = match R::MANY {
                false => Ask::Along,
                true if i + 1 < places => Ask::Elsewhere((LANES * w.row_bytes()).cast_signed()),
                true => Ask::Nothing,
            };
            let distance = distance.distance(LANES);
            let mut columns = [w.row(place.first); LANES];
            for n in 1..LANES {
                columns[n] = w.row(place.column(n));
            }
            for begin in (0..w.k()).step_by(CHUNK) {
                if begin.is_multiple_of(SEGMENT) {
                    ahead.step();
                }
                let coming = &mut words[made % 2];
                let by_column = if R::MANY { &mut read } else { coming };
                for n in 0..LANES {
                    let words = w.chunk::<V>(&mut columns[n], table, begin, distance);
                    for i in 0..CHUNK_WORDS {
                        V::store_bytes(by_column.at_mut(n * COLUMN + i * ROW), words[i]);
                    }
                }
                if R::MANY {
                    read.turn(&mut words[made % 2]);
                }
                made += 1;
                let before = &words[made % 2];
                if begin > 0 {
                    rows.add(before, begin - CHUNK);
                } else if let Some(last) = last {
                    rows.add(before, w.k() - CHUNK);
                    rows.store(e, last);
                    zero();
                }
            }
            last = Some(place);
        }
        if let Some(last) = last {
            rows.add(&words[(made + 1) % 2], w.k() - CHUNK);
            rows.store(e, last);
        }
    }
}

/// One register of sums for each row of inputs.
#[derive(Clone, Copy)]
struct Few<const M: usize>([*const u8; M]);

impl<const M: usize> Few<M> {
    #[inline(always)]
    unsafe fn new(x: InputRows, first: usize) -> Self {
        let mut rows = [std::ptr::null(); M];
        for m in 0..M {
            // SAFETY: the caller's duty.
            rows[m] = unsafe { x.brain_row(x.taken(first + m)).cast_const().cast() };
        }
        Self(rows)
    }
}

impl<const M: usize> Rows for Few<M> {
    const MANY: bool = false;

    #[inline(always)]
    unsafe fn add(self, words: &Words, begin: usize) {
        for i in 0..CHUNK_WORDS {
            let mut inputs = self.0;
            for m in 0..M {
                inputs[m] = inputs[m].wrapping_add(begin * 2 + i * ROW);
            }
            // SAFETY: the caller's duty.
            unsafe { add_few(words.at(i * ROW), COLUMN, inputs) };
        }
    }

    #[inline(always)]
    unsafe fn store(self, e: Extent, place: Place) {
        for m in 0..M {
            let mut sums = [0.0; LANES];
            // SAFETY: the caller's duty; a register of sums is as many floats.
            unsafe {
                store(m, sums.as_mut_ptr(), PAIR);
                for n in 0..place.count {
                    *e.out.add(m * e.stride + place.column(n)) = sums[n];
                }
            }
        }
    }
}

/// `R` registers of sums, each of sixteen rows; of the last one some may not be there, for which inputs [have
/// room](super::quantize::Inputs), and nobody reads their sums.
#[derive(Clone, Copy)]
struct Many<const R: usize> {
    first: *const u8,
    stride: usize,
}

impl<const R: usize> Rows for Many<R> {
    const MANY: bool = true;

    #[inline(always)]
    unsafe fn add(self, words: &Words, begin: usize) {
        for i in 0..CHUNK_WORDS {
            let inputs = self.first.wrapping_add(begin * 2 + i * ROW);
            // SAFETY: the caller's duty.
            unsafe { add_many::<R>(words.at(i * LANES * ROW), inputs, self.stride) };
        }
    }

    #[inline(always)]
    unsafe fn store(self, e: Extent, place: Place) {
        for register in 0..R {
            let r = register * TILE_ROWS;
            let rows = TILE_ROWS.min(e.rows - r);
            // SAFETY: the caller's duty.
            unsafe {
                let out = e.out.add(r * e.stride + place.first);
                if rows == TILE_ROWS && place.count == LANES {
                    store(register, out, e.stride * size_of::<f32>());
                    continue;
                }
                let mut sums = [[0.0; LANES]; TILE_ROWS];
                store(register, sums.as_mut_ptr().cast(), ROW);
                for r in 0..rows {
                    let to = out.add(r * e.stride);
                    std::ptr::copy_nonoverlapping(sums[r].as_ptr(), to, place.count);
                }
            }
        }
    }
}
