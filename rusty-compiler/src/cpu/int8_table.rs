//! The two products of an adapter whose tables are Q8_0, in integers.
//!
//! `A x` takes the inputs as they were quantized for the weights. `B u` makes words of `u`: of each panel and chunk
//! of ranks, `u` times the block's scale becomes a whole number of 15 bits and a sign, relative to the largest. What
//! that rounds away is below 2^-15 of the largest product, the step of the codes themselves is 2^-7.

use super::block_rows::{BlockRows, Dots, store_sums};
use super::float::Extent;
use super::low_rank::{Columns, add_half};
use super::quantize::InputRows;
use super::simd::word_products::WordProducts;
use super::simd::{LANES, Vector};
use super::stored_panel::{InQ8, Panel, SCALE_BYTES};
use crate::delta_table::PANEL;

const BLOCK: usize = InQ8::BYTES;
/// Largest word.
pub(super) const WORD: f32 = 32767.0;

/// `A x` in integers, two blocks at a time, eight lanes each.
pub(super) struct Integers;

impl Dots for Integers {
    #[inline(always)]
    unsafe fn dots<V: Vector, const M: usize, const N: usize>(
        a: BlockRows,
        x: InputRows,
        e: Extent,
        (r, c): (usize, usize),
    ) {
        let blocks = a.k / PANEL;
        // SAFETY: the caller's duty.
        unsafe {
            let row = |m: usize| e.first + r + m;
            let codes: [*const u8; M] = std::array::from_fn(|m| {
                x.codes
                    .wrapping_add(row(m) * x.code_stride)
                    .cast_const()
                    .cast()
            });
            let scales: [*const f32; M] =
                std::array::from_fn(|m| x.scales.wrapping_add(row(m) * x.groups).cast_const());
            let rows: [*const u8; N] = std::array::from_fn(|n| a.at.add((c + n) * blocks * BLOCK));
            let mut sums = [[V::splat(0.0); M]; N];
            for first in (0..blocks).step_by(2) {
                // A last block alone stands in both halves, once with a scale of zero.
                let second = (first + 1).min(blocks - 1);
                let xs: [V::B; M] = std::array::from_fn(|m| {
                    V::load_halves(codes[m].add(first * PANEL), codes[m].add(second * PANEL))
                });
                let starts: [V::I; M] = std::array::from_fn(|m| V::dot_start(xs[m]));
                let by: [V::F; M] = std::array::from_fn(|m| {
                    let other = if second > first {
                        *scales[m].add(second)
                    } else {
                        0.0
                    };
                    V::pair(*scales[m].add(first), other)
                });
                for n in 0..N {
                    let (p, q) = (rows[n].add(first * BLOCK), rows[n].add(second * BLOCK));
                    let a = V::load_halves(p.add(SCALE_BYTES), q.add(SCALE_BYTES));
                    let scale = V::half_pair(p.cast(), q.cast());
                    for m in 0..M {
                        let dot = V::to_f(V::dot_signed(starts[m], a, xs[m]));
                        sums[n][m] = V::fma(dot, V::mul(scale, by[m]), sums[n][m]);
                    }
                }
            }
            store_sums::<V, M, N>(sums, e, (r, c));
        }
    }
}

/// `y = gain_out * y + B u + bias` for a strip; `u` and `y` come with the distance of their rows.
///
/// # Safety
/// As [`super::low_rank::expand`].
#[inline(always)]
pub(super) unsafe fn expand<V: WordProducts>(
    c: Columns,
    (u, u_stride): (*const f32, usize),
    (y, y_stride): (*mut f32, usize),
) {
    let mut row = 0;
    // SAFETY: the caller's duty; rows stay below `c.rows`.
    unsafe {
        let at = |row: usize| (u.add(row * u_stride), y.add(row * y_stride));
        while c.rows - row >= 4 {
            strip::<V, 4>(c, at(row), (u_stride, y_stride));
            row += 4;
        }
        while row < c.rows {
            strip::<V, 1>(c, at(row), (u_stride, y_stride));
            row += 1;
        }
    }
}

/// All panels of a strip for `M` rows.
#[inline(always)]
unsafe fn strip<V: WordProducts, const M: usize>(
    c: Columns,
    (u, y): (*const f32, *mut f32),
    strides: (usize, usize),
) {
    let (mut panel, end) = (c.first / PANEL, (c.first + c.count).div_ceil(PANEL));
    // SAFETY: the caller's duty; panels stay below the strip's end.
    unsafe {
        while end - panel >= 4 {
            panels::<V, M, 4>(c, panel, (u, y), strides);
            panel += 4;
        }
        while end - panel >= 2 {
            panels::<V, M, 2>(c, panel, (u, y), strides);
            panel += 2;
        }
        if panel < end {
            panels::<V, M, 1>(c, panel, (u, y), strides);
        }
    }
}

/// `N` panels from `first` on for `M` rows. First all words are made, which is one long wait for each panel but not
/// for all together, then all products.
#[inline(always)]
unsafe fn panels<V: WordProducts, const M: usize, const N: usize>(
    c: Columns,
    first: usize,
    (u, y): (*const f32, *mut f32),
    (u_stride, y_stride): (usize, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = [[[V::splat(0.0); 2]; M]; N];
        for from in (0..c.rank).step_by(LANES) {
            let ranks = (c.rank - from).min(LANES);
            let u = (u.add(from), u_stride);
            let blocks = |p: usize| c.b.add(((first + p) * c.rank + from) * BLOCK);
            // No `from_fn`: what is called in a closure is compiled without the instruction set.
            let mut words = [[Words::default(); M]; N];
            for p in 0..N {
                make_words::<V, M>(blocks(p), ranks, u, &mut words[p]);
            }
            for p in 0..N {
                add_products::<V, M>(blocks(p), ranks, &words[p], &mut sums[p]);
            }
        }
        for (p, sums) in sums.into_iter().enumerate() {
            for (m, [low, high]) in sums.into_iter().enumerate() {
                let (low, high) = V::in_order(low, high);
                let y = y.add(m * y_stride);
                add_half::<V>(c, 2 * (first + p), low, y);
                add_half::<V>(c, 2 * (first + p) + 1, high, y);
            }
        }
    }
}

/// `u` times the scales of a panel's ranks, in units of `step`; zeros behind the last rank.
#[derive(Clone, Copy, Default)]
struct Words {
    words: [i16; LANES],
    step: f32,
}

#[inline(always)]
unsafe fn make_words<V: WordProducts, const M: usize>(
    blocks: *const u8,
    ranks: usize,
    (u, u_stride): (*const f32, usize),
    out: &mut [Words; M],
) {
    // SAFETY: the caller's duty.
    unsafe {
        let scales = V::halves(blocks, BLOCK, ranks);
        for (m, out) in out.iter_mut().enumerate() {
            let u = V::mul(scales, V::load_part(u.add(m * u_stride), ranks));
            let largest = V::largest(V::abs(u));
            let some = largest > f32::MIN_POSITIVE * WORD;
            let inverse = if some { WORD / largest } else { 0.0 };
            V::store_i16(out.words.as_mut_ptr(), V::mul(u, V::splat(inverse)));
            out.step = largest * (1.0 / WORD);
        }
    }
}

/// Adds up to 16 ranks of a panel, two at a time.
#[inline(always)]
unsafe fn add_products<V: WordProducts, const M: usize>(
    blocks: *const u8,
    ranks: usize,
    words: &[Words; M],
    sums: &mut [[V::F; 2]; M],
) {
    // SAFETY: the caller's duty.
    unsafe {
        let mut dots = [[V::splat_i(0); 2]; M];
        for rank in (0..ranks).step_by(2) {
            let code = |rank: usize| blocks.add(rank * BLOCK + SCALE_BYTES).cast();
            let (low, high) = V::word_pairs(code(rank), code((rank + 1).min(ranks - 1)));
            for m in 0..M {
                let pair = words[m]
                    .words
                    .as_ptr()
                    .add(rank)
                    .cast::<i32>()
                    .read_unaligned();
                dots[m][0] = V::dot_words(dots[m][0], low, pair);
                dots[m][1] = V::dot_words(dots[m][1], high, pair);
            }
        }
        for m in 0..M {
            let step = V::splat(words[m].step);
            for (sum, dots) in sums[m].iter_mut().zip(dots[m]) {
                *sum = V::fma(V::to_f(dots), step, *sum);
            }
        }
    }
}
