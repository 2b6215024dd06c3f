//! `B u` of an adapter whose `B` is [interleaved](crate::interleaving) bytes, in integers.
//!
//! Of each 32 ranks, `u` times the ranks' factors becomes whole numbers of two bytes, relative to the largest: what that
//! rounds away is below 2^-15 of the largest product, the step of the codes themselves is 2^-7. A number is
//! `RADIX high + low`, both between -127 and 127, which every instruction set multiplies exactly.

use super::low_rank::{Columns, add_half};
use crate::cpu::simd::LANES;
use crate::cpu::simd::byte_products::ByteProducts;
use crate::delta_table::PANEL;
use crate::interleaving::{CODES, PANEL_SCALES, QUARTET, RANKS, factor_bytes, panel_bytes};

const RADIX: f32 = 254.0;
/// Largest number; one more, and the high byte would be rounded up to 128.
const LARGEST: f32 = 127.0 * RADIX + 126.0;

/// `y = gain_out * y + gain_low * B u + bias` for a strip; `u` and `y` come with the distance of their rows.
///
/// # Safety
/// As [`super::low_rank::expand`].
#[inline(always)]
pub(super) unsafe fn expand<V: ByteProducts>(
    c: Columns,
    (u, u_stride): (*const f32, usize),
    (y, y_stride): (*mut f32, usize),
) {
    for from in (0..c.rank).step_by(RANKS) {
        let block = Block::new(c, from);
        let mut row = 0;
        // SAFETY: the caller's duty; rows stay below `c.rows`.
        unsafe {
            let at = |row: usize| (u.add(row * u_stride + from), y.add(row * y_stride));
            while c.rows - row >= 4 {
                strip::<V, 4>(block, at(row), (u_stride, y_stride));
                row += 4;
            }
            while row < c.rows {
                strip::<V, 1>(block, at(row), (u_stride, y_stride));
                row += 1;
            }
        }
    }
}

/// Up to 32 ranks of a strip's outputs.
#[derive(Clone, Copy)]
struct Block {
    /// Gains of the output act before the first ranks, biases behind the last.
    columns: Columns,
    /// Factors of the ranks.
    factors: *const f32,
    /// The first panel's block, and bytes to the next panel's.
    at: *const u8,
    step: usize,
    ranks: usize,
}

impl Block {
    fn new(mut columns: Columns, from: usize) -> Self {
        let (rank, b) = (columns.rank, columns.b);
        if from > 0 {
            columns.gain = std::ptr::null();
        }
        if from + RANKS < rank {
            columns.bias = std::ptr::null();
        }
        let before = from / RANKS * (PANEL_SCALES + RANKS * PANEL);
        let step = panel_bytes(rank);
        let panel = columns.first / PANEL * step;
        Self {
            factors: b.wrapping_add(from * size_of::<f32>()).cast(),
            at: b.wrapping_add(factor_bytes(rank) + panel + before),
            step,
            ranks: RANKS.min(rank - from),
            columns,
        }
    }
}

/// All panels of a strip for `M` rows.
#[inline(always)]
unsafe fn strip<V: ByteProducts, const M: usize>(
    block: Block,
    (u, y): (*const f32, *mut f32),
    (u_stride, y_stride): (usize, usize),
) {
    let c = block.columns;
    let (first, end) = (c.first / PANEL, (c.first + c.count).div_ceil(PANEL));
    // SAFETY: the caller's duty; panels stay below the strip's end.
    unsafe {
        let mut numbers = [Numbers::default(); M];
        for m in 0..M {
            numbers[m].make::<V>(u.add(m * u_stride), block.factors, block.ranks);
        }
        for panel in first..end {
            let at = block.at.add((panel - first) * block.step);
            let sums = products::<V, M>(at, block.ranks, &numbers);
            for m in 0..M {
                let y = y.add(m * y_stride);
                add_half::<V>(c, 2 * panel, sums[m][0], y);
                add_half::<V>(c, 2 * panel + 1, sums[m][1], y);
            }
        }
    }
}

/// Numbers of two bytes, in units of `step`.
#[derive(Clone, Copy, Default)]
struct Numbers {
    high: [i8; RANKS],
    low: [i8; RANKS],
    /// What their products with a code begin with.
    high_start: i32,
    low_start: i32,
    step: f32,
}

impl Numbers {
    /// Of up to 32 ranks; zeros behind the last.
    #[inline(always)]
    unsafe fn make<V: ByteProducts>(&mut self, u: *const f32, factors: *const f32, ranks: usize) {
        // SAFETY: the caller's duty.
        unsafe {
            let count = |half: usize| (ranks - half * LANES).min(LANES);
            // The second is one of zeros where sixteen ranks are all.
            let mut values = [V::splat(0.0); 2];
            for half in 0..ranks.div_ceil(LANES) {
                let at = half * LANES;
                let factors = V::load_part(factors.add(at), count(half));
                values[half] = V::mul(V::load_part(u.add(at), count(half)), factors);
            }
            let largest = V::largest(V::max(V::abs(values[0]), V::abs(values[1])));
            let some = largest > f32::MIN_POSITIVE * LARGEST;
            let inverse = V::splat(if some { LARGEST / largest } else { 0.0 });
            let mut sums = [V::splat(0.0); 2];
            for half in 0..ranks.div_ceil(LANES) {
                let u = V::mul(values[half], inverse);
                let high = V::round(V::mul(u, V::splat(1.0 / RADIX)));
                let low = V::round(V::fnma(high, V::splat(RADIX), u));
                V::store_i8(self.high.as_mut_ptr().add(half * LANES), high);
                V::store_i8(self.low.as_mut_ptr().add(half * LANES), low);
                sums = [V::add(sums[0], high), V::add(sums[1], low)];
            }
            self.step = largest * (1.0 / LARGEST);
            if V::WIDE_OFFSET != 0 {
                self.high_start = -V::WIDE_OFFSET * V::sum(sums[0]) as i32;
                self.low_start = -V::WIDE_OFFSET * V::sum(sums[1]) as i32;
            }
        }
    }

    /// High and low bytes of quartet `q`.
    #[inline(always)]
    unsafe fn quartet(&self, q: usize) -> (i32, i32) {
        // SAFETY: the caller's duty.
        unsafe {
            let quartet = |bytes: &[i8; RANKS]| {
                let at = bytes.as_ptr().add(QUARTET * q);
                at.cast::<i32>().read_unaligned()
            };
            (quartet(&self.high), quartet(&self.low))
        }
    }
}

/// A panel's products, in two halves.
#[inline(always)]
unsafe fn products<V: ByteProducts, const M: usize>(
    at: *const u8,
    ranks: usize,
    numbers: &[Numbers; M],
) -> [[V::F; 2]; M] {
    // SAFETY: the caller's duty.
    unsafe {
        let codes = at.add(PANEL_SCALES);
        let mut high = [[V::splat_i(0); 2]; M];
        let mut low = [[V::splat_i(0); 2]; M];
        for m in 0..M {
            high[m] = [V::splat_i(numbers[m].high_start); 2];
            low[m] = [V::splat_i(numbers[m].low_start); 2];
        }
        for q in 0..ranks.div_ceil(QUARTET) {
            let first = V::load_bytes(codes.add(q * CODES));
            let second = V::load_bytes(codes.add(q * CODES + CODES / 2));
            for m in 0..M {
                let (h, l) = numbers[m].quartet(q);
                high[m][0] = V::dot_wide(high[m][0], first, h);
                high[m][1] = V::dot_wide(high[m][1], second, h);
                low[m][0] = V::dot_wide(low[m][0], first, l);
                low[m][1] = V::dot_wide(low[m][1], second, l);
            }
        }
        let scales = [
            V::load_f16(at.cast()),
            V::load_f16(at.cast::<u16>().add(LANES)),
        ];
        let mut sums = [[V::splat(0.0); 2]; M];
        for m in 0..M {
            let (step, by) = (numbers[m].step, numbers[m].step * RADIX);
            for half in 0..2 {
                let low = V::mul(V::to_f(low[m][half]), V::splat(step));
                let sum = V::fma(V::to_f(high[m][half]), V::splat(by), low);
                sums[m][half] = V::mul(sum, scales[half]);
            }
        }
        sums
    }
}
