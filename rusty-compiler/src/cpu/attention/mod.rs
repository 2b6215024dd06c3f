//! Attention over KV pages: one pass with an online softmax (FlashAttention, arXiv 2205.14135).
//!
//! A task is a block of query rows of one sequence with the query heads of one key/value head (or as many of them as
//! fit), so each page is loaded once for the whole group. Where values are lanes of the keys, both are read from the
//! same rows. Keys are walked in chunks of four pages; chunks are gathered in spans
//! of 1024 tokens whose partial results are merged in order. Chunks and spans lie at fixed positions of the
//! sequence, and every query accumulates on its own, so a row's result does not depend on its neighbours, on
//! how tasks are cut, or on which thread runs them. Spans become tasks of their own where heads are few.

mod blocks;
mod floats;
pub(super) mod partial;
pub(super) mod tasks;

use super::float::{InBf16, InF16, InF32};
use super::kv::LayerView;
use super::prefetch::{LINE, ask_for};
use super::quantize::{InputRows, fill_row_with};
use super::simd::word_products::WordProducts;
use super::simd::{LANES, Level, Vector, math, per_isa, vectors};
use crate::PAGE_TOKENS;
use crate::rotation::rotate_all;
use crate::step::KvFormat;
use blocks::{Bytes, InBlocks, Nibbles};
use floats::InFloats;
use partial::{MAX_QUERIES, Partial};
use rusty_graph::AttentionSpec;

/// Pages of a chunk.
const CHUNK_PAGES: usize = 4;
/// Tokens of a chunk.
const CHUNK: usize = CHUNK_PAGES * PAGE_TOKENS;
/// Tokens of a span.
const SPAN: usize = 1024;

/// Some query rows of one sequence, and heads that share a key/value head.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) spec: AttentionSpec,
    pub(super) layer: LayerView,
    /// First query head, and how many there are.
    pub(super) head: usize,
    pub(super) group: usize,
    /// Queries of the first row, `[rows, heads * head_dim]`.
    pub(super) q: *const f32,
    /// Rows.
    pub(super) rows: usize,
    /// Position of the first row.
    pub(super) position: usize,
    /// Pages of the sequence.
    pub(super) pages: &'a [u32],
    /// Room for the queries where keys are blocks.
    pub(super) quantized: InputRows,
}

impl Block<'_> {
    fn kv_head(&self) -> usize {
        self.head / (self.spec.heads / self.spec.kv_heads) as usize
    }

    /// Queries of the block.
    pub(super) fn queries(&self) -> usize {
        self.rows * self.group
    }

    /// First key that a row sees.
    fn first_key(&self, row: usize) -> usize {
        let seen = self.spec.window.map_or(usize::MAX, |w| w as usize);
        (self.position + row + 1).saturating_sub(seen)
    }

    /// Spans that some row sees.
    pub(super) fn spans(&self) -> std::ops::Range<usize> {
        self.first_key(0) / SPAN..(self.position + self.rows - 1) / SPAN + 1
    }

    /// Where query `i` lies: rows outer, heads of the group inner.
    pub(super) fn query(&self, i: usize) -> *const f32 {
        let (row, head) = (i / self.group, self.head + i % self.group);
        let at = (row * self.spec.heads as usize + head) * self.spec.head_dim as usize;
        self.q.wrapping_add(at)
    }
}

per_isa! {
    /// Rotates and quantizes the block's queries where keys are blocks.
    ///
    /// # Safety
    /// The queries are whole and their room is this thread's.
    pub(super) fn quantize_queries(block: Block<'_>) = products quantize_queries_with
}

#[inline(always)]
unsafe fn quantize_queries_with<V: WordProducts>(block: Block<'_>) {
    let lanes = block.layer.shape.head_dim;
    let Some(blocks) = block.layer.shape.blocks else {
        return;
    };
    for i in 0..block.queries() {
        let row = block.quantized.float_row(i);
        // SAFETY: the caller's duty.
        unsafe {
            std::ptr::copy_nonoverlapping(block.query(i), row, lanes);
            rotate_all(std::slice::from_raw_parts_mut(row, lanes));
            fill_row_with::<V>(block.quantized, i, row, lanes, blocks.forms);
        }
    }
}

/// Scratch of a thread: scores of a chunk.
pub(super) const SCORE_WORDS: usize = MAX_QUERIES * CHUNK;

/// Attends over one span into `out`, which is overwritten.
///
/// # Safety
/// The block's pages are written up to its last position; `out` and `scores` are this thread's.
pub(super) unsafe fn attend(
    level: Level,
    block: Block<'_>,
    span: usize,
    scores: *mut f32,
    out: Partial,
) {
    // SAFETY: the caller's duty.
    unsafe {
        match block.layer.shape.format {
            KvFormat::F32 => attend_to::<InFloats<InF32>>(level, block, span, scores, out),
            KvFormat::F16 => attend_to::<InFloats<InF16>>(level, block, span, scores, out),
            KvFormat::Bf16 => attend_to::<InFloats<InBf16>>(level, block, span, scores, out),
            KvFormat::Q8_0 => attend_to::<InBlocks<Bytes>>(level, block, span, scores, out),
            KvFormat::Q4_0 => attend_to::<InBlocks<Nibbles>>(level, block, span, scores, out),
        }
    }
}

per_isa! {
    /// [`attend`] to what is cached in one way. Compilers take less time for a function of each than for one of all.
    ///
    /// # Safety
    /// As above.
    fn attend_to<C: Cached>(block: Block<'_>, span: usize, scores: *mut f32, out: Partial) = products span_of
}

/// How the keys and values of a chunk are multiplied, by how they are stored. Queries are `q .. q + M`.
trait Cached {
    /// Queries of a tile that fit the register file.
    fn queries<V: WordProducts>() -> usize;

    /// Products of queries and keys, a chunk for each query.
    ///
    /// # Safety
    /// The pages are written; `scores` holds the chunks.
    unsafe fn scores<V: WordProducts, const M: usize>(
        block: &Block<'_>,
        keys: &Heads,
        values: &Heads,
        q: usize,
        scores: *mut f32,
    );

    /// `out = out * factor + probabilities x values` for the first `tokens` of the chunk.
    ///
    /// # Safety
    /// As above; probabilities of a page behind the last token are zero.
    unsafe fn add_values<V: WordProducts, const M: usize>(
        values: &Heads,
        tokens: usize,
        factors: &[V::F; M],
        scores: *const f32,
        q: usize,
        out: Partial,
    );
}

#[inline(always)]
unsafe fn span_of<V: WordProducts, C: Cached>(
    block: Block<'_>,
    span: usize,
    scores: *mut f32,
    out: Partial,
) {
    let block = &block;
    let queries = block.queries();
    let last = block.position + block.rows - 1;
    let from = (span * SPAN).max(block.first_key(0)) / CHUNK;
    let to = ((span + 1) * SPAN).min(last + 1).div_ceil(CHUNK);
    let shape = block.layer.shape;
    // SAFETY: the caller's duty; page indices stay below the last position's page.
    unsafe {
        out.clear(queries);
        for chunk in from..to {
            let start = chunk * CHUNK;
            let keys = Heads::of(block, block.layer.keys, shape.key_head(), start);
            let values = Heads::of(block, block.layer.values, shape.value_head(), start);
            let mut q = 0;
            while C::queries::<V>() >= 4 && queries - q >= 4 {
                chunk_of::<V, C, 4>(block, &keys, &values, start, q, scores, out);
                q += 4;
            }
            while C::queries::<V>() >= 2 && queries - q >= 2 {
                chunk_of::<V, C, 2>(block, &keys, &values, start, q, scores, out);
                q += 2;
            }
            while q < queries {
                chunk_of::<V, C, 1>(block, &keys, &values, start, q, scores, out);
                q += 1;
            }
        }
    }
}

/// Where the pages of a chunk, and of the next, hold the keys or values of a block's head. Pages past the end repeat
/// the last one; their scores are masked.
struct Heads {
    now: [*const u8; CHUNK_PAGES],
    next: [*const u8; CHUNK_PAGES],
    /// Lanes of a row, where there are rows.
    row: usize,
}

impl Heads {
    #[inline(always)]
    fn of(block: &Block<'_>, pool: *const u8, head_bytes: usize, start: usize) -> Self {
        let last = (block.position + block.rows - 1) / PAGE_TOKENS;
        let head = |p: usize| {
            let page = block.pages[(start / PAGE_TOKENS + p).min(last)] as usize;
            let head = block.kv_head() * head_bytes;
            pool.wrapping_add(page * block.layer.page_bytes + head)
        };
        Self {
            now: std::array::from_fn(head),
            next: std::array::from_fn(|p| head(CHUNK_PAGES + p)),
            row: block.layer.shape.padded,
        }
    }

    /// The first queries' pass over a page asks for the same place in the next chunk's page.
    #[inline(always)]
    fn ask(&self, p: usize, at: usize, q: usize) {
        if q == 0 && at.is_multiple_of(LINE) {
            ask_for(self.next[p].addr() + at);
        }
    }
}

/// One chunk for queries `q .. q + M`.
#[inline(always)]
unsafe fn chunk_of<V: WordProducts, C: Cached, const M: usize>(
    block: &Block<'_>,
    keys: &Heads,
    values: &Heads,
    start: usize,
    q: usize,
    scores: *mut f32,
    out: Partial,
) {
    let last = block.position + block.rows - 1;
    let tokens = (last + 1 - start).min(CHUNK);
    // SAFETY: the caller's duty.
    unsafe {
        C::scores::<V, M>(block, keys, values, q, scores);
        let mut scaled = [V::splat(1.0); M];
        for (m, scaled) in scaled.iter_mut().enumerate() {
            *scaled = softmax::<V>(block, start, q + m, scores.add(m * CHUNK), out);
        }
        C::add_values::<V, M>(values, tokens, &scaled, scores, q, out);
    }
}

/// Scores to exponentials, in place; updates maximum and sum and returns the factor on what was gathered.
#[inline(always)]
unsafe fn softmax<V: Vector>(
    block: &Block<'_>,
    start: usize,
    q: usize,
    scores: *mut f32,
    out: Partial,
) -> V::F {
    let row = q / block.group;
    let (from, to) = (block.first_key(row), block.position + row + 1);
    // SAFETY: the caller's duty.
    unsafe {
        let by = V::splat(block.spec.scale);
        let mut s = vectors!(V, CHUNK_PAGES, |p| V::mul(
            V::load(scores.add(p * LANES)),
            by
        ));
        if let Some(cap) = block.spec.softcap {
            for s in &mut s {
                *s = V::mul(
                    V::splat(cap),
                    math::tanh::<V>(V::mul(*s, V::splat(1.0 / cap))),
                );
            }
        }
        if start < from || start + CHUNK > to {
            for (p, s) in s.iter_mut().enumerate() {
                V::store(scores.add(p * LANES), *s);
                for t in 0..LANES {
                    let key = start + p * LANES + t;
                    if key < from || key >= to {
                        *scores.add(p * LANES + t) = f32::NEG_INFINITY;
                    }
                }
                *s = V::load(scores.add(p * LANES));
            }
        }
        let largest = V::largest(V::max(V::max(s[0], s[1]), V::max(s[2], s[3])));
        let before = *out.max(q);
        let now = before.max(largest);
        if now == f32::NEG_INFINITY {
            for p in 0..CHUNK_PAGES {
                V::store(scores.add(p * LANES), V::splat(0.0));
            }
            return V::splat(1.0);
        }
        let mut sum = V::splat(0.0);
        for (p, s) in s.iter().enumerate() {
            let e = math::exp::<V>(V::sub(*s, V::splat(now)));
            V::store(scores.add(p * LANES), e);
            sum = V::add(sum, e);
        }
        // One lane's exponential, so that every level agrees with its own vectors.
        let factor = math::exp::<V>(V::splat(before - now));
        let mut lanes = [0f32; LANES];
        V::store(lanes.as_mut_ptr(), factor);
        *out.sum(q) = *out.sum(q) * lanes[0] + V::sum(sum);
        *out.max(q) = now;
        factor
    }
}

/// Divides by the sums and writes `[rows, group * head_dim]`.
///
/// # Safety
/// `out` holds the block's results.
pub(super) unsafe fn finish(block: &Block<'_>, from: Partial, out: *mut f32) {
    let lanes = block.spec.value_dim() as usize;
    // SAFETY: the caller's duty.
    unsafe {
        for q in 0..block.queries() {
            let by = 1.0 / *from.sum(q);
            let values = std::slice::from_raw_parts(from.values(q), lanes);
            let out = std::slice::from_raw_parts_mut(out.add(q * lanes), lanes);
            for (o, v) in out.iter_mut().zip(values) {
                *o = v * by;
            }
            if block.layer.shape.blocks.is_some() {
                rotate_all(out);
            }
        }
    }
}
