//! Keys and values of a chunk in blocks of 32 lanes, laid out by [`crate::cpu::kv_blocks`].
//!
//! Scores are products of queries in bytes with panels of keys. Of the values of 32 lanes and a chunk, each token's
//! probability times its scale becomes a whole number of 15 bits and a sign, relative to the chunk's largest; sums
//! over the chunk are exact.

use super::partial::Partial;
use super::{Block, CHUNK, CHUNK_PAGES, Cached, Heads};
use crate::cpu::forms::{Block4, Block8, Form};
use crate::cpu::kv_blocks::SCALES;
use crate::cpu::panel::GROUP;
use crate::cpu::prefetch::Ahead;
use crate::cpu::quads::Codes;
use crate::cpu::simd::LANES;
use crate::cpu::simd::word_products::WordProducts;
use crate::cpu::tile::{self, Panel};
use std::marker::PhantomData;

/// Codes of eight bits.
pub(super) struct Bytes;
/// Codes of four bits.
pub(super) struct Nibbles;

/// Codes of a page's values, a token's 32 lanes side by side.
type PageCodes = [[i8; GROUP]; LANES];

/// A width of codes.
pub(super) trait Width {
    /// What panels of keys are.
    type Keys: Form;
    /// The codes at `from` as signed bytes, unpacked into `room` where they are not stored so.
    unsafe fn bytes(from: *const u8, room: &mut PageCodes) -> *const i8;
}

impl Width for Bytes {
    type Keys = Block8;
    #[inline(always)]
    unsafe fn bytes(from: *const u8, _: &mut PageCodes) -> *const i8 {
        from.cast()
    }
}

impl Width for Nibbles {
    type Keys = Block4;
    #[inline(always)]
    unsafe fn bytes(from: *const u8, room: &mut PageCodes) -> *const i8 {
        // SAFETY: the caller's duty: a page's codes are read.
        let pairs = unsafe { &*from.cast::<[[u8; LANES]; LANES]>() };
        for (pairs, codes) in pairs.iter().zip(room.iter_mut()) {
            for (i, pair) in pairs.iter().enumerate() {
                codes[i] = (pair & 15) as i8 - 8;
                codes[LANES + i] = (pair >> 4) as i8 - 8;
            }
        }
        room.as_ptr().cast()
    }
}

/// Largest word.
const WORD: f32 = 32767.0;

/// Blocks of a width as they are cached.
pub(super) struct InBlocks<B>(PhantomData<B>);

impl<B: Width> Cached for InBlocks<B> {
    /// As many as an integer tile has rows, with two sums of values for each.
    fn queries<V: WordProducts>() -> usize {
        V::QUANT_ROWS.min(V::ATTN_SUMS / 2)
    }

    #[inline(always)]
    unsafe fn scores<V: WordProducts, const M: usize>(
        block: &Block<'_>,
        keys: &Heads,
        _: &Heads,
        q: usize,
        scores: *mut f32,
    ) {
        let Some(blocks) = &block.layer.shape.blocks else {
            return;
        };
        let mut ahead = Ahead::default();
        for p in 0..CHUNK_PAGES {
            let next = if q == 0 {
                keys.next[p]
            } else {
                std::ptr::null()
            };
            let panel = Panel::new(&blocks.panel, keys.now[p], 0, next, None);
            // SAFETY: the caller's duty.
            unsafe {
                let out = (scores.add(p * LANES), CHUNK, 0);
                tile::tile::<V, B::Keys, M, 1>([panel], block.quantized, q, out, &mut ahead);
            }
        }
    }

    #[inline(always)]
    unsafe fn add_values<V: WordProducts, const M: usize>(
        values: &Heads,
        tokens: usize,
        factors: &[V::F; M],
        scores: *const f32,
        q: usize,
        out: Partial,
    ) {
        let group_bytes = const { SCALES + <B::Keys as Form>::Codes::BYTES };
        let pages = tokens.div_ceil(LANES);
        let mut room: PageCodes = [[0; GROUP]; LANES];
        // SAFETY: the caller's duty; scales and codes of a group lie in each page.
        unsafe {
            for group in 0..out.padded / GROUP {
                let at = group * group_bytes;
                let mut words = [Words::default(); M];
                for (m, words) in words.iter_mut().enumerate() {
                    words.make::<V>(values, at, pages, scores.add(m * CHUNK));
                }
                let mut dots = [[V::splat_i(0); 2]; M];
                for p in 0..pages {
                    let codes = B::bytes(values.now[p].add(at + SCALES), &mut room);
                    for line in (at / 64 * 64..at + group_bytes).step_by(64) {
                        values.ask(p, line, q);
                    }
                    for t in (0..LANES).step_by(2) {
                        let first = codes.add(t * GROUP);
                        let (low, high) = V::word_pairs(first, first.add(GROUP));
                        for m in 0..M {
                            let pair = words[m].pair(p * LANES + t);
                            dots[m][0] = V::dot_words(dots[m][0], low, pair);
                            dots[m][1] = V::dot_words(dots[m][1], high, pair);
                        }
                    }
                }
                for m in 0..M {
                    let [low, high] = dots[m];
                    let (low, high) = V::in_order(V::to_f(low), V::to_f(high));
                    let step = V::splat(words[m].step);
                    let to = out.values(q + m).add(group * GROUP);
                    for (to, dot) in [(to, low), (to.add(LANES), high)] {
                        let before = V::mul(V::load(to), factors[m]);
                        V::store(to, V::fma(dot, step, before));
                    }
                }
            }
        }
    }
}

/// Probabilities times scales of a chunk's tokens, in units of `step`.
#[derive(Clone, Copy)]
struct Words {
    words: [i16; CHUNK],
    step: f32,
}

impl Default for Words {
    fn default() -> Self {
        Self {
            words: [0; CHUNK],
            step: 0.0,
        }
    }
}

impl Words {
    /// Those of the first pages; the scales lie at byte `at` of each.
    #[inline(always)]
    unsafe fn make<V: WordProducts>(
        &mut self,
        values: &Heads,
        at: usize,
        pages: usize,
        probabilities: *const f32,
    ) {
        // SAFETY: the caller's duty.
        unsafe {
            let mut products = [V::splat(0.0); CHUNK_PAGES];
            let mut most = V::splat(0.0);
            for p in 0..pages {
                let scales = V::load_f16(values.now[p].add(at).cast());
                products[p] = V::mul(scales, V::load(probabilities.add(p * LANES)));
                most = V::max(most, V::abs(products[p]));
            }
            let largest = V::largest(most);
            let some = largest > f32::MIN_POSITIVE * WORD;
            let inverse = V::splat(if some { WORD / largest } else { 0.0 });
            for (p, products) in products.into_iter().enumerate().take(pages) {
                let to = self.words.as_mut_ptr().add(p * LANES);
                V::store_i16(to, V::mul(products, inverse));
            }
            self.step = largest * (1.0 / WORD);
        }
    }

    /// The words of tokens `t` and `t + 1`.
    #[inline(always)]
    unsafe fn pair(&self, t: usize) -> i32 {
        // SAFETY: the caller's duty: tokens are inside the chunk.
        unsafe { self.words.as_ptr().add(t).cast::<i32>().read_unaligned() }
    }
}
