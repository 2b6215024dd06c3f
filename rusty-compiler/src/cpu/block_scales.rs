//! What a block's groups share: the scales that their steps are multiplied with, once for all of a block's products.

use super::forms::Form;
use super::group_sums::Inputs;
use super::quads::Codes;
use super::simd::word_products::WordProducts;
use super::simd::{LANES, Vector};

/// Adds a block's products, `steps`, whose groups are `groups` from `first` on, and whose scales are at `block`.
#[inline(always)]
pub(super) unsafe fn add_block<V: WordProducts, F: Form, const M: usize>(
    sums: &mut [V::F; M],
    steps: &[V::F; M],
    (block, factor): (*const u8, f32),
    x: &Inputs<M>,
    (first, groups): (usize, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let scales = BlockScales::<V>::new::<F>(block, factor);
        let mut minima = [V::splat_i(0); M];
        for pair in Pair::all::<F>(first, groups) {
            let words = pair.steps::<V, F>(block);
            for (m, minima) in minima.iter_mut().enumerate() {
                *minima = V::dot_words(*minima, words, pair.code_sums(x.starts[m]));
            }
        }
        for m in 0..M {
            let row = *x.scales[m].add(first);
            sums[m] = scales.add::<F>(sums[m], steps[m], minima[m], row);
        }
    }
}

/// Two neighbouring minima of a block, or the last alone.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    /// The first, counted from the block's first one.
    at: usize,
    /// The block's first one, counted from the row's.
    from: usize,
    alone: bool,
}

impl Pair {
    /// All of a block of so many groups, of which group `first` is the first.
    #[inline(always)]
    pub(super) fn all<F: Form>(first: usize, groups: usize) -> impl Iterator<Item = Self> {
        let pieces = F::SCALING.pieces();
        let count = match F::SCALING.has_min_steps() {
            true => groups * pieces,
            false => 0,
        };
        (0..count).step_by(2).map(move |at| Self {
            at,
            from: first * pieces,
            alone: at + 1 == count,
        })
    }

    /// Their steps, of the block at `block`.
    #[inline(always)]
    pub(super) unsafe fn steps<V: WordProducts, F: Form>(self, block: *const u8) -> V::I {
        let step = |i: usize| {
            let (group, half) = (i / F::SCALING.pieces(), i % F::SCALING.pieces());
            let scales = F::SCALING.block_bytes() + group * F::BYTES + F::Codes::BYTES;
            let of_pieces = F::SCALING.group_bytes() / F::SCALING.pieces();
            block.wrapping_add(scales + half * of_pieces + LANES)
        };
        let second = if self.alone { self.at } else { self.at + 1 };
        // SAFETY: the caller's duty.
        unsafe { V::paired_bytes(step(self.at), step(second)) }
    }

    /// The sums of codes that they are multiplied with: as words, of which the second is zero where there is one minimum.
    #[inline(always)]
    pub(super) unsafe fn code_sums(self, starts: *const i32) -> i32 {
        // SAFETY: the caller's duty; the row has room for twice as many.
        let both = unsafe {
            let sums = starts.cast::<i16>().add(self.from + self.at);
            sums.cast::<i32>().read_unaligned()
        };
        if self.alone { both & 0xffff } else { both }
    }
}

/// What the steps of a block are multiplied with.
#[derive(Clone, Copy)]
pub(super) struct BlockScales<V: Vector> {
    scale: V::F,
    min: V::F,
}

impl<V: Vector> BlockScales<V> {
    /// Those of the block at `block`.
    #[inline(always)]
    pub(super) unsafe fn new<F: Form>(block: *const u8, factor: f32) -> Self {
        // SAFETY: the caller's duty.
        unsafe {
            let scale = V::load_f16(block.cast());
            if F::SCALING.has_min_steps() {
                let min = V::load_f16(block.add(2 * LANES).cast());
                return Self { scale, min };
            }
            Self {
                scale: V::mul(scale, V::splat(factor)),
                min: V::splat(0.0),
            }
        }
    }

    /// `sum + row * (steps * scale - minima * min)`.
    #[inline(always)]
    pub(super) unsafe fn add<F: Form>(
        &self,
        sum: V::F,
        steps: V::F,
        minima: V::I,
        row: f32,
    ) -> V::F {
        // SAFETY: the caller's duty.
        unsafe {
            let mut of_block = V::mul(steps, self.scale);
            if F::SCALING.has_min_steps() {
                of_block = V::fnma(V::to_f(minima), self.min, of_block);
            }
            V::fma(of_block, V::splat(row), sum)
        }
    }
}
