//! One to four rows of inputs times rows of BF16 on AMX's tile registers.
//!
//! Memory is the limit there, so that weights are made words a chunk of sixteen columns at a time, while the chunk before is
//! multiplied. Columns are the first operand as they lie, a row of inputs is the second one, a single column of it. Sums are
//! added in the order of [`amx_brains`](super::amx_brains), since which operand is which changes no product.

use super::amx_registers::{Config, ROW};
use super::brain_columns::{CHUNK_WORDS, Columns};
use super::float::SEGMENT;
use super::prefetch::{Ahead, Ask};
use super::quantize::InputRows;
use super::row_tiles::Extent;
use super::short_rows::CHUNK;
use super::simd::LANES;
use super::simd::avx512::Avx512 as V;
use super::simd::small_floats::SmallFloats;
use std::arch::asm;
use std::mem::MaybeUninit;

/// Rows of inputs, each of which has a register of sums.
pub(super) const FEW_ROWS: usize = 4;
/// Bytes of a pair of values, or of a sum.
const PAIR: usize = 4;
/// Bytes of a column's words of a chunk.
const COLUMN: usize = CHUNK_WORDS * ROW;

/// Sums, weights, inputs.
pub(super) static SHAPE: Config = Config::new([(LANES, PAIR), (LANES, ROW), (LANES, PAIR)]);

/// Words of two chunks: one is multiplied while the other is made.
#[repr(C, align(64))]
struct Words([[MaybeUninit<u8>; LANES * COLUMN]; 2]);

/// Sixteen columns of an extent or fewer: the first one, from one to the next, how many.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    step: usize,
    count: usize,
}

impl Place {
    /// All columns, evenly spread over the extent, so that each is one of several long streams.
    fn all(columns: usize) -> impl Iterator<Item = Place> {
        let (step, rest) = (columns / LANES, columns % LANES);
        let spread = (0..step).map(move |first| Place {
            first,
            step,
            count: LANES,
        });
        let last = Place {
            first: step * LANES,
            step: 1,
            count: rest,
        };
        spread.chain((rest > 0).then_some(last))
    }

    /// Column `n` of sixteen. Those that are not there are the last one again, and nobody reads their sums.
    fn column(self, n: usize) -> usize {
        self.first + n.min(self.count - 1) * self.step
    }
}

/// All columns of an extent of one to [`FEW_ROWS`] rows.
///
/// # Safety
/// As [`multiply`](super::amx_brains::multiply); registers are of [`SHAPE`].
#[inline(always)]
pub(super) unsafe fn multiply<W: Columns>(w: W, x: InputRows, e: Extent, ahead: &mut Ahead) {
    // SAFETY: the caller's duty.
    unsafe {
        match e.rows {
            1 => rows::<W, 1>(w, x, e, ahead),
            2 => rows::<W, 2>(w, x, e, ahead),
            3 => rows::<W, 3>(w, x, e, ahead),
            _ => rows::<W, FEW_ROWS>(w, x, e, ahead),
        }
    }
}

/// The columns' last chunk is multiplied when the next columns' first one is made: a core does not wait for one product of
/// many to end before it reads on.
#[inline(always)]
unsafe fn rows<W: Columns, const M: usize>(w: W, x: InputRows, e: Extent, ahead: &mut Ahead) {
    let mut words = Words([[MaybeUninit::uninit(); LANES * COLUMN]; 2]);
    let distance = Ask::Along.distance(LANES);
    let mut inputs: [*const u8; M] = [std::ptr::null(); M];
    let (mut made, mut last) = (0, None);
    // SAFETY: the caller's duty.
    unsafe {
        for m in 0..M {
            inputs[m] = x.brain_row(x.taken(e.first + m)).cast_const().cast();
        }
        let table = w.table::<V>();
        zero();
        for place in Place::all(e.columns) {
            let mut columns = [w.row(place.first); LANES];
            for n in 1..LANES {
                columns[n] = w.row(place.column(n));
            }
            for begin in (0..w.k()).step_by(CHUNK) {
                if begin.is_multiple_of(SEGMENT) {
                    ahead.step();
                }
                let to: *mut u8 = words.0[made % 2].as_mut_ptr().cast();
                for n in 0..LANES {
                    let words = w.chunk::<V>(&mut columns[n], table, begin, distance);
                    for i in 0..CHUNK_WORDS {
                        V::store_bytes(to.add(n * COLUMN + i * ROW), words[i]);
                    }
                }
                made += 1;
                let before = &words.0[made % 2];
                if begin > 0 {
                    add::<M>(before, &inputs, begin - CHUNK);
                } else if let Some(last) = last {
                    add::<M>(before, &inputs, w.k() - CHUNK);
                    store::<M>(e, last);
                    zero();
                }
            }
            last = Some(place);
        }
        if let Some(last) = last {
            add::<M>(&words.0[(made + 1) % 2], &inputs, w.k() - CHUNK);
            store::<M>(e, last);
        }
    }
}

/// Stores the sums of some columns.
#[inline(always)]
unsafe fn store<const M: usize>(e: Extent, place: Place) {
    for m in 0..M {
        // SAFETY: the caller's duty.
        unsafe {
            let sums = sums(m);
            for n in 0..place.count {
                *e.out.add(m * e.stride + place.column(n)) = sums[n];
            }
        }
    }
}

#[inline(always)]
unsafe fn zero() {
    // SAFETY: the registers are set up.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, nomem)
        );
    }
}

/// Adds the products of the chunk from value `begin` on.
#[inline(always)]
unsafe fn add<const M: usize>(
    words: &[MaybeUninit<u8>; LANES * COLUMN],
    inputs: &[*const u8; M],
    begin: usize,
) {
    /// Adds the inputs' 32 values at `$x` times the weights' in `tmm4`.
    macro_rules! input {
        ($sums:literal, $inputs:literal, $x:expr) => {
            asm!(
                concat!("tileloadd ", $inputs, ", [{x} + {pair}*1]"),
                concat!("tdpbf16ps ", $sums, ", tmm4, ", $inputs),
                x = in(reg) $x,
                pair = in(reg) PAIR,
                options(nostack, readonly),
            )
        };
    }
    for i in 0..CHUNK_WORDS {
        let at = begin * 2 + i * ROW;
        // SAFETY: the caller's duty.
        unsafe {
            asm!(
                "tileloadd tmm4, [{w} + {column}*1]",
                w = in(reg) words.as_ptr().add(i * ROW),
                column = in(reg) COLUMN,
                options(nostack, readonly),
            );
            input!("tmm0", "tmm6", inputs[0].add(at));
            if M > 1 {
                input!("tmm1", "tmm7", inputs[1].add(at));
            }
            if M > 2 {
                input!("tmm2", "tmm6", inputs[2].add(at));
            }
            if M > 3 {
                input!("tmm3", "tmm7", inputs[3].add(at));
            }
        }
    }
}

/// The sums of row `m`.
#[inline(always)]
unsafe fn sums(m: usize) -> [f32; LANES] {
    let mut sums = [0.0; LANES];
    /// Stores a register.
    macro_rules! store {
        ($name:literal) => {
            asm!(
                concat!("tilestored [{to} + {pair}*1], ", $name),
                to = in(reg) sums.as_mut_ptr(),
                pair = in(reg) PAIR,
                options(nostack),
            )
        };
    }
    // SAFETY: a register of sums is as many floats.
    unsafe {
        match m {
            0 => store!("tmm0"),
            1 => store!("tmm1"),
            2 => store!("tmm2"),
            _ => store!("tmm3"),
        }
    }
    sums
}
