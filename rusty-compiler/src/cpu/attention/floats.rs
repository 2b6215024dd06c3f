//! Keys and values of a chunk in floats.

use super::partial::Partial;
use super::{Block, CHUNK, CHUNK_PAGES, Cached, Heads};
use crate::cpu::float::Stored;
use crate::cpu::simd::word_products::WordProducts;
use crate::cpu::simd::{LANES, Vector, vectors};
use std::marker::PhantomData;

/// Floats of a kind as they are cached.
pub(super) struct InFloats<S>(PhantomData<S>);

impl<S: Stored> Cached for InFloats<S> {
    fn queries<V: WordProducts>() -> usize {
        V::ATTN_SUMS
    }

    #[inline(always)]
    unsafe fn scores<V: WordProducts, const M: usize>(
        block: &Block<'_>,
        keys: &Heads,
        values: &Heads,
        q: usize,
        scores: *mut f32,
    ) {
        // SAFETY: the caller's duty.
        unsafe {
            match (block.layer.shape.of_keys, V::ATTN_SUMS / M) {
                (true, 4..) => dot_rows::<V, S, M, 4>(block, values, q, scores),
                (true, 2..) => dot_rows::<V, S, M, 2>(block, values, q, scores),
                (true, _) => dot_rows::<V, S, M, 1>(block, values, q, scores),
                (false, 4..) => dot_keys::<V, S, M, 4>(block, keys, q, scores),
                (false, 2..) => dot_keys::<V, S, M, 2>(block, keys, q, scores),
                (false, _) => dot_keys::<V, S, M, 1>(block, keys, q, scores),
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
        let vectors = out.padded / LANES;
        let mut d = 0;
        // SAFETY: the caller's duty.
        unsafe {
            while V::ATTN_SUMS / M >= 4 && vectors - d >= 4 {
                add_vectors::<V, S, M, 4>(values, tokens, d, factors, scores, q, out);
                d += 4;
            }
            while V::ATTN_SUMS / M >= 2 && vectors - d >= 2 {
                add_vectors::<V, S, M, 2>(values, tokens, d, factors, scores, q, out);
                d += 2;
            }
            while d < vectors {
                add_vectors::<V, S, M, 1>(values, tokens, d, factors, scores, q, out);
                d += 1;
            }
        }
    }
}

/// Scores of keys that lie by lane, `P` pages at a time.
#[inline(always)]
unsafe fn dot_keys<V: Vector, S: Stored, const M: usize, const P: usize>(
    block: &Block<'_>,
    keys: &Heads,
    q: usize,
    scores: *mut f32,
) {
    // SAFETY: the caller's duty.
    unsafe {
        let qs: [*const f32; M] = std::array::from_fn(|m| block.query(q + m));
        for first in (0..CHUNK_PAGES).step_by(P) {
            let mut sums = [[V::splat(0.0); P]; M];
            for d in 0..block.layer.shape.head_dim {
                let at = d * LANES * S::BYTES;
                let k = vectors!(V, P, |p| S::load::<V>(keys.now[first + p].add(at)));
                (first..first + P).for_each(|p| keys.ask(p, at, q));
                for m in 0..M {
                    let x = V::splat(*qs[m].add(d));
                    for p in 0..P {
                        sums[m][p] = V::fma(k[p], x, sums[m][p]);
                    }
                }
            }
            for m in 0..M {
                for p in 0..P {
                    V::store(scores.add(m * CHUNK + (first + p) * LANES), sums[m][p]);
                }
            }
        }
    }
}

/// Scores of keys that lie in rows: a sum over lanes for each, `TOKENS` keys at a time.
#[inline(always)]
unsafe fn dot_rows<V: Vector, S: Stored, const M: usize, const TOKENS: usize>(
    block: &Block<'_>,
    rows: &Heads,
    q: usize,
    scores: *mut f32,
) {
    let (lanes, row) = (block.layer.shape.head_dim, rows.row);
    // SAFETY: the caller's duty; what a row is padded with is never written, and zero.
    unsafe {
        let qs: [*const f32; M] = std::array::from_fn(|m| block.query(q + m));
        for (p, page) in rows.now.iter().enumerate() {
            for t in (0..LANES).step_by(TOKENS) {
                let mut sums = [[V::splat(0.0); TOKENS]; M];
                for d in (0..lanes).step_by(LANES) {
                    let k = vectors!(V, TOKENS, |i| S::load::<V>(
                        page.add(((t + i) * row + d) * S::BYTES)
                    ));
                    (0..TOKENS).for_each(|i| rows.ask(p, ((t + i) * row + d) * S::BYTES, q));
                    for m in 0..M {
                        let x = match lanes - d {
                            left if left < LANES => V::load_part(qs[m].add(d), left),
                            _ => V::load(qs[m].add(d)),
                        };
                        for i in 0..TOKENS {
                            sums[m][i] = V::fma(k[i], x, sums[m][i]);
                        }
                    }
                }
                for m in 0..M {
                    for i in 0..TOKENS {
                        *scores.add(m * CHUNK + p * LANES + t + i) = V::sum(sums[m][i]);
                    }
                }
            }
        }
    }
}

/// `values[d ..] = values * factor + probabilities x V` for `D` vectors of the head.
#[inline(always)]
unsafe fn add_vectors<V: Vector, S: Stored, const M: usize, const D: usize>(
    values: &Heads,
    tokens: usize,
    d: usize,
    factors: &[V::F; M],
    scores: *const f32,
    q: usize,
    out: Partial,
) {
    // SAFETY: the caller's duty; tokens past the last position are not read.
    unsafe {
        let mut sums = [[V::splat(0.0); D]; M];
        for m in 0..M {
            for j in 0..D {
                let v = V::load(out.values(q + m).add((d + j) * LANES));
                sums[m][j] = V::mul(v, factors[m]);
            }
        }
        for p in 0..tokens.div_ceil(LANES) {
            for t in 0..(tokens - p * LANES).min(LANES) {
                let at = (t * values.row + d * LANES) * S::BYTES;
                let from = values.now[p].add(at);
                let v = vectors!(V, D, |j| S::load::<V>(from.add(j * LANES * S::BYTES)));
                (0..D).for_each(|j| values.ask(p, at + j * LANES * S::BYTES, q));
                for m in 0..M {
                    let weight = V::splat(*scores.add(m * CHUNK + p * LANES + t));
                    for j in 0..D {
                        sums[m][j] = V::fma(weight, v[j], sums[m][j]);
                    }
                }
            }
        }
        for m in 0..M {
            for j in 0..D {
                V::store(out.values(q + m).add((d + j) * LANES), sums[m][j]);
            }
        }
    }
}
