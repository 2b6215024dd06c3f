//! `B u` of an adapter whose `B` is [interleaved](crate::interleaving) bytes, in integers.
//!
//! Of each panel and sixteen ranks, `u` times the ranks' scales becomes whole numbers of two bytes, relative to the
//! largest: what that rounds away is below 2^-15 of the largest product, the step of the codes themselves is 2^-7.
//! A number is `RADIX high + low`, both between -127 and 127, which every instruction set multiplies exactly.

use super::low_rank::{Columns, add_half};
use crate::cpu::simd::{LANES, Vector};
use crate::delta_table::PANEL;
use crate::interleaving::{CODES, QUARTET};

const RADIX: f32 = 254.0;
/// Largest number; one more, and the high byte would be rounded up to 128.
const LARGEST: f32 = 127.0 * RADIX + 126.0;

/// `y = gain_out * y + gain_low * B u + bias` for a strip; `u` and `y` come with the distance of their rows.
///
/// # Safety
/// As [`super::low_rank::expand`].
#[inline(always)]
pub(super) unsafe fn expand<V: Vector>(
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
unsafe fn strip<V: Vector, const M: usize>(
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
        while panel < end {
            panels::<V, M, 1>(c, panel, (u, y), strides);
            panel += 1;
        }
    }
}

/// `N` panels from `first` on for `M` rows. First all numbers are made, which is one long wait for each panel but not
/// for all together, then all products.
#[inline(always)]
unsafe fn panels<V: Vector, const M: usize, const N: usize>(
    c: Columns,
    first: usize,
    (u, y): (*const f32, *mut f32),
    (u_stride, y_stride): (usize, usize),
) {
    let ranks = c.rank.next_multiple_of(QUARTET);
    // SAFETY: the caller's duty.
    unsafe {
        let panel = |p: usize| c.b.add((first + p) * ranks * (PANEL + 2));
        let mut sums = [[[V::splat(0.0); 2]; M]; N];
        for from in (0..c.rank).step_by(LANES) {
            let count = (c.rank - from).min(LANES);
            // No `from_fn`, for the reason of [`vectors!`](crate::cpu::simd::vectors).
            let mut numbers = [[Numbers::default(); M]; N];
            for p in 0..N {
                let scales = panel(p).add(ranks * PANEL + from * 2).cast();
                let scales = load_scales::<V>(scales, ranks - from);
                for m in 0..M {
                    let u = V::load_part(u.add(m * u_stride + from), count);
                    numbers[p][m].make::<V>(V::mul(scales, u));
                }
            }
            for p in 0..N {
                let codes = panel(p).add(from * PANEL);
                add_products::<V, M>(codes, count, &numbers[p], &mut sums[p]);
            }
        }
        for (p, sums) in sums.into_iter().enumerate() {
            for (m, [low, high]) in sums.into_iter().enumerate() {
                let y = y.add(m * y_stride);
                add_half::<V>(c, 2 * (first + p), low, y);
                add_half::<V>(c, 2 * (first + p) + 1, high, y);
            }
        }
    }
}

/// Up to sixteen of `count` scales; zeros behind the last.
#[inline(always)]
unsafe fn load_scales<V: Vector>(p: *const u16, count: usize) -> V::F {
    // SAFETY: the caller's duty.
    unsafe {
        if count >= LANES {
            return V::load_f16(p);
        }
        let mut scales = [0u16; LANES];
        std::ptr::copy_nonoverlapping(p.cast::<u8>(), scales.as_mut_ptr().cast(), count * 2);
        V::load_f16(scales.as_ptr())
    }
}

/// Numbers of two bytes, in units of `step`.
#[derive(Clone, Copy, Default)]
struct Numbers {
    high: [i8; LANES],
    low: [i8; LANES],
    step: f32,
}

impl Numbers {
    #[inline(always)]
    unsafe fn make<V: Vector>(&mut self, u: V::F) {
        // SAFETY: the caller's duty.
        unsafe {
            let largest = V::largest(V::abs(u));
            let some = largest > f32::MIN_POSITIVE * LARGEST;
            let inverse = if some { LARGEST / largest } else { 0.0 };
            let u = V::mul(u, V::splat(inverse));
            let high = V::round(V::mul(u, V::splat(1.0 / RADIX)));
            let low = V::round(V::fnma(high, V::splat(RADIX), u));
            V::store_i8(self.high.as_mut_ptr(), high);
            V::store_i8(self.low.as_mut_ptr(), low);
            self.step = largest * (1.0 / LARGEST);
        }
    }

    /// High and low bytes of quartet `q`.
    #[inline(always)]
    unsafe fn quartet(&self, q: usize) -> (i32, i32) {
        // SAFETY: the caller's duty.
        unsafe {
            let quartet = |bytes: &[i8; LANES]| {
                bytes
                    .as_ptr()
                    .add(QUARTET * q)
                    .cast::<i32>()
                    .read_unaligned()
            };
            (quartet(&self.high), quartet(&self.low))
        }
    }
}

/// Adds up to sixteen ranks of a panel.
#[inline(always)]
unsafe fn add_products<V: Vector, const M: usize>(
    codes: *const u8,
    ranks: usize,
    numbers: &[Numbers; M],
    sums: &mut [[V::F; 2]; M],
) {
    // SAFETY: the caller's duty.
    unsafe {
        // What codes of zero give, which are stored as 128.
        let zeros = V::load_bytes([128u8; 4 * LANES].as_ptr());
        let mut high = [[V::splat_i(0); 3]; M];
        let mut low = [[V::splat_i(0); 3]; M];
        for q in 0..ranks.div_ceil(QUARTET) {
            let first = V::load_bytes(codes.add(q * CODES));
            let second = V::load_bytes(codes.add(q * CODES + CODES / 2));
            for m in 0..M {
                let (h, l) = numbers[m].quartet(q);
                high[m][0] = V::dot_wide(high[m][0], first, h);
                high[m][1] = V::dot_wide(high[m][1], second, h);
                low[m][0] = V::dot_wide(low[m][0], first, l);
                low[m][1] = V::dot_wide(low[m][1], second, l);
                if V::WIDE_OFFSET != 0 {
                    high[m][2] = V::dot_wide(high[m][2], zeros, h);
                    low[m][2] = V::dot_wide(low[m][2], zeros, l);
                }
            }
        }
        for m in 0..M {
            let step = V::splat(numbers[m].step);
            let by = V::splat(numbers[m].step * RADIX);
            let zero = V::fma(V::to_f(high[m][2]), by, V::mul(V::to_f(low[m][2]), step));
            for (half, sum) in sums[m].iter_mut().enumerate() {
                let low = V::fma(V::to_f(low[m][half]), step, V::sub(*sum, zero));
                *sum = V::fma(V::to_f(high[m][half]), by, low);
            }
        }
    }
}
