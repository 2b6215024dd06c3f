//! Products of BF16 on AMX's tile registers (Intel SDM, TDPBF16PS): up to sixteen input rows times sixteen columns, 32 values at a
//! time.
//!
//! Columns become [words](super::brain_columns) some at a time, and those of sixteen columns change places with the pairs of values
//! that they hold, as the instruction wants them. It adds the first values of all pairs, the second ones, then both to the sum,
//! whatever the number of rows and columns: an output is the same to the bit alone and beside others. One row is multiplied
//! like sixteen, since nothing else adds in that order. Limits: those of [`brain_tile`](super::brain_tile); numbers too small to be
//! normal count as zero.

use super::amx_few_brains::{self, FEW_ROWS};
use super::amx_registers::{Config, ROW, release};
use super::brain_columns::{Columns, make_words, word_bytes};
use super::brain_tile::BrainRows;
use super::float::SEGMENT;
use super::prefetch::Ahead;
use super::quantize::InputRows;
use super::row_tiles::Extent;
use super::simd::LANES;
use super::simd::avx512::Avx512;
use super::tile::TILE_ROWS;
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// By the number of input rows, less one: sums, inputs, weights.
static SHAPES: [Config; TILE_ROWS] = {
    let mut shapes = [Config::new([(0, 0); 3]); TILE_ROWS];
    let mut rows = 1;
    while rows <= TILE_ROWS {
        shapes[rows - 1] = Config::new([(rows, ROW), (rows, ROW), (LANES, ROW)]);
        rows += 1;
    }
    shapes
};

/// This thread's registers, given up when it is dropped.
struct Registers {
    /// Input rows that they have room for.
    rows: usize,
}

impl Registers {
    fn hold(&mut self, rows: usize) {
        if self.rows != rows {
            // SAFETY: only [`multiply`] makes one, whose caller may use AMX.
            unsafe { SHAPES[rows - 1].set_up() };
            self.rows = rows;
        }
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { release() };
    }
}

/// `out[r * stride + c] = x[taken(first + r)] . w[c]`.
///
/// # Safety
/// The machine has AVX-512 and AMX for brain floats; `w` holds the extent's columns and [room](super::brain_columns::room) for them, `x` the rows as brain
/// floats, `out` the results.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn multiply(w: BrainRows<'_>, x: InputRows, e: Extent, ahead: &mut Ahead) {
    // SAFETY: the caller's duty.
    unsafe {
        match w {
            BrainRows::Plain(w) => multiply_with(w, x, e, ahead),
            BrainRows::Short(w) => multiply_with(w, x, e, ahead),
        }
    }
}

#[inline(always)]
unsafe fn multiply_with<W: Columns>(w: W, x: InputRows, e: Extent, ahead: &mut Ahead) {
    let k = w.k();
    let mut registers = Registers { rows: 0 };
    if e.rows <= FEW_ROWS {
        // SAFETY: the caller's duty; the registers are given up below.
        unsafe {
            amx_few_brains::SHAPE.set_up();
            amx_few_brains::multiply(w, x, e, ahead);
        }
        return;
    }
    let mut c = 0;
    while c < e.columns {
        // SAFETY: the caller's duty.
        unsafe {
            let some = make_words::<Avx512, W>(w, e, c);
            let tiles = w.words().add(word_bytes(k));
            for first in (0..some.columns).step_by(LANES) {
                let words = w.words().add(first * k * 2);
                let tiles = tiles.add(first * k * 2);
                turn(words, LANES.min(some.columns - first), k, tiles);
            }
            for first in (0..some.columns).step_by(2 * LANES) {
                let columns = Columns32 {
                    tiles: tiles.add(first * k * 2),
                    k,
                };
                let pair = Extent {
                    columns: (2 * LANES).min(some.columns - first),
                    out: some.out.add(first),
                    ..some
                };
                columns.multiply(x, pair, &mut registers, ahead);
            }
            c += some.columns;
        }
    }
}

/// Puts `count` columns' words at `words` in the registers' order: a register's row has a pair of values of each column.
#[inline(always)]
unsafe fn turn(words: *const u8, count: usize, k: usize, to: *mut u8) {
    for at in (0..k * 2).step_by(ROW) {
        // SAFETY: the caller's duty. Columns that are not there are others again, and nobody reads their sums.
        unsafe {
            let mut rows = [_mm512_setzero_si512(); LANES];
            for i in 0..LANES {
                rows[i] = _mm512_loadu_si512(words.add(i.min(count - 1) * k * 2 + at).cast());
            }
            let rows = transposed(rows);
            for i in 0..LANES {
                _mm512_storeu_si512(to.add(at * LANES + i * ROW).cast(), rows[i]);
            }
        }
    }
}

/// Sixteen rows of sixteen double words, as columns.
#[inline(always)]
unsafe fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let mut pairs = rows;
        for i in (0..16).step_by(2) {
            pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        let mut fours = pairs;
        for i in (0..16).step_by(4) {
            fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
            fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
            fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
            fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
        }
        // Quarter `l` of `fours[4 i + j]` holds column `4 l + j` of rows `4 i ..`.
        let mut columns = fours;
        for j in 0..4 {
            let (a, b) = (fours[j], fours[4 + j]);
            let (c, d) = (fours[8 + j], fours[12 + j]);
            let (even, odd) = (
                _mm512_shuffle_i32x4::<0x88>(a, b),
                _mm512_shuffle_i32x4::<0xdd>(a, b),
            );
            let (even2, odd2) = (
                _mm512_shuffle_i32x4::<0x88>(c, d),
                _mm512_shuffle_i32x4::<0xdd>(c, d),
            );
            columns[j] = _mm512_shuffle_i32x4::<0x88>(even, even2);
            columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd, odd2);
            columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even, even2);
            columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd, odd2);
        }
        columns
    }
}

/// Up to 32 columns of `k` values in the registers' order.
#[derive(Clone, Copy)]
struct Columns32 {
    tiles: *const u8,
    k: usize,
}

/// Some input rows of a product.
#[derive(Clone, Copy)]
struct Inputs {
    /// Where the values of the first one begin, and of the first one of a second register.
    at: [*const u8; 2],
    stride: usize,
    /// The first one of the product's, and rows of a register.
    first: usize,
    rows: usize,
}

impl Columns32 {
    /// All rows of the extent, which has these columns.
    #[inline(always)]
    unsafe fn multiply(
        self,
        x: InputRows,
        e: Extent,
        registers: &mut Registers,
        ahead: &mut Ahead,
    ) {
        // Rows that are listed lie anywhere.
        let most = if x.taken.is_null() { TILE_ROWS } else { 1 };
        let mut r = 0;
        // SAFETY: the caller's duty.
        unsafe {
            while r < e.rows {
                let rows = most.min(e.rows - r);
                registers.hold(rows);
                let row = |r: usize| x.brain_row(x.taken(e.first + r)).cast_const().cast();
                let two = e.rows - r >= 2 * rows;
                let inputs = Inputs {
                    at: [row(r), row(if two { r + rows } else { r })],
                    stride: x.brain_row(1).addr() - x.brain_row(0).addr(),
                    first: r,
                    rows,
                };
                let ahead = (r == 0).then_some(&mut *ahead);
                match (two, e.columns > LANES) {
                    (true, true) => self.tile::<2, 2>(inputs, e, ahead),
                    (true, false) => self.tile::<2, 1>(inputs, e, ahead),
                    (false, true) => self.tile::<1, 2>(inputs, e, ahead),
                    (false, false) => self.tile::<1, 1>(inputs, e, ahead),
                }
                r += if two { 2 * rows } else { rows };
            }
        }
    }

    /// `A` registers of input rows times `B` of columns.
    #[inline(always)]
    unsafe fn tile<const A: usize, const B: usize>(
        self,
        x: Inputs,
        e: Extent,
        mut ahead: Option<&mut Ahead>,
    ) {
        // SAFETY: the caller's duty.
        unsafe {
            let second = self.tiles.wrapping_add(self.k * ROW / 2);
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem)
            );
            for at in (0..self.k * 2).step_by(ROW) {
                if let Some(ahead) = &mut ahead
                    && at.is_multiple_of(2 * SEGMENT)
                {
                    ahead.step();
                }
                let a = [x.at[0].wrapping_add(at), x.at[1].wrapping_add(at)];
                let to = at * LANES;
                let b = [self.tiles.wrapping_add(to), second.wrapping_add(to)];
                add::<A, B>(a, x.stride, b);
            }
            for i in 0..A {
                for j in 0..B {
                    let (r, c) = (x.first + i * x.rows, j * LANES);
                    let out = e.out.add(r * e.stride + c);
                    store(2 * i + j, (out, e.stride), (x.rows, e.columns - c));
                }
            }
        }
    }
}

/// Adds the products of 32 values.
#[inline(always)]
unsafe fn add<const A: usize, const B: usize>(a: [*const u8; 2], stride: usize, b: [*const u8; 2]) {
    /// Instructions over these operands.
    macro_rules! run {
        ($($instruction:literal),*) => {
            asm!(
                $($instruction,)*
                a = in(reg) a[0],
                a1 = in(reg) a[1],
                stride = in(reg) stride,
                b = in(reg) b[0],
                b1 = in(reg) b[1],
                row = in(reg) ROW,
                options(nostack, readonly),
            )
        };
    }
    // SAFETY: the caller's duty.
    unsafe {
        match (A, B) {
            (2, 2) => run!(
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b1} + {row}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a1} + {stride}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7"
            ),
            (2, _) => run!(
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a1} + {stride}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "/* {b1} */"
            ),
            (_, 2) => run!(
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b1} + {row}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "/* {a1} */"
            ),
            _ => run!(
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "/* {a1} {b1} */"
            ),
        }
    }
}

/// Room for a register.
#[repr(C, align(64))]
struct Tile([MaybeUninit<f32>; TILE_ROWS * LANES]);

/// Stores the sums of register `register`: `rows` rows, and of sixteen columns the first `columns`.
#[inline(always)]
unsafe fn store(
    register: usize,
    (out, stride): (*mut f32, usize),
    (rows, columns): (usize, usize),
) {
    /// All of a register.
    macro_rules! all {
        ($name:literal, $to:expr, $stride:expr) => {
            asm!(
                concat!("tilestored [{to} + {stride}*1], ", $name),
                to = in(reg) $to,
                stride = in(reg) $stride,
                options(nostack),
            )
        };
    }
    let whole = |to: *mut f32, stride: usize| {
        // SAFETY: the caller's duty; there is room for all of it.
        unsafe {
            match register {
                0 => all!("tmm0", to, stride),
                1 => all!("tmm1", to, stride),
                2 => all!("tmm2", to, stride),
                _ => all!("tmm3", to, stride),
            }
        }
    };
    if columns >= LANES {
        return whole(out, stride * size_of::<f32>());
    }
    let mut tile = Tile([MaybeUninit::uninit(); TILE_ROWS * LANES]);
    let at = tile.0.as_mut_ptr().cast();
    whole(at, ROW);
    for r in 0..rows {
        // SAFETY: the caller's duty.
        unsafe {
            let from = at.add(r * LANES).cast_const();
            std::ptr::copy_nonoverlapping(from, out.add(r * stride), columns);
        }
    }
}
