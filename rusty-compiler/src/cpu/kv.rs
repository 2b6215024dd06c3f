//! The paged cache of keys and values.
//!
//! A page holds all layers of its tokens, one after the other, so that a short sequence touches little memory. Keys lie
//! transposed within a layer's part, `[kv_head][head_dim][16]`, so that one vector holds the same dimension
//! of sixteen tokens and scores need no sum over lanes; values lie behind them, `[kv_head][16][head_dim]`, rows padded to
//! a vector. Pages are resident once they are written. In half precision, values beyond its range are
//! clamped, so that a stored page is always finite.
//!
//! Where values are lanes of the keys, there are rows only, laid out as values are.

use super::memory::Buffer;
use super::simd::{LANES, Vector, per_isa};
use crate::step::KvFormat;
use rusty_graph::{AttentionValues, KvLayer};

/// Keys and values of all layers.
pub(super) struct KvPool {
    memory: Buffer,
    layers: Vec<LayerPart>,
    format: KvFormat,
    pages: usize,
    page_bytes: usize,
}

/// A layer's part of every page.
struct LayerPart {
    /// First byte of its keys, and of its values, inside a page.
    keys: usize,
    values: usize,
    shape: PageShape,
}

/// Extents of one layer's part of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageShape {
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    /// `head_dim` rounded up to a vector.
    pub(super) padded: usize,
    /// Lanes of a head's result, rounded up to a vector.
    pub(super) result: usize,
    /// Whether values are the first lanes of keys.
    pub(super) of_keys: bool,
}

impl PageShape {
    /// Extents of a layer's part of a page.
    pub(super) fn of(layer: &KvLayer) -> Self {
        let head_dim = layer.head_dim as usize;
        let (result, of_keys) = match layer.values {
            AttentionValues::Own => (head_dim, false),
            AttentionValues::OfKeys(lanes) => (lanes as usize, true),
        };
        Self {
            kv_heads: layer.kv_heads as usize,
            head_dim,
            padded: head_dim.next_multiple_of(LANES),
            result: result.next_multiple_of(LANES),
            of_keys,
        }
    }

    /// Values of one head's keys in a page.
    pub(super) fn key_head(&self) -> usize {
        match self.of_keys {
            true => 0,
            false => self.head_dim * LANES,
        }
    }

    /// Values of one head's values in a page.
    pub(super) fn value_head(&self) -> usize {
        self.padded * LANES
    }
}

/// One layer as the attention kernel reads it.
#[derive(Clone, Copy)]
pub(super) struct LayerView {
    /// Its keys, and its values, in the first page.
    pub(super) keys: *const u8,
    pub(super) values: *const u8,
    /// From a page to the next.
    pub(super) page_bytes: usize,
    pub(super) shape: PageShape,
    pub(super) format: KvFormat,
}

impl KvPool {
    /// Pages for all layers.
    pub(super) fn new(layers: &[KvLayer], pages: u32, format: KvFormat) -> Self {
        let pages = pages as usize;
        let mut page_bytes = 0;
        let mut place = |words: usize| {
            let at = page_bytes;
            page_bytes += (words * format.bytes()).next_multiple_of(64);
            at
        };
        let layers = layers.iter().map(PageShape::of).map(|shape| LayerPart {
            keys: place(shape.kv_heads * shape.key_head()),
            values: place(shape.kv_heads * shape.value_head()),
            shape,
        });
        Self {
            layers: layers.collect(),
            memory: Buffer::new(pages * page_bytes),
            format,
            pages,
            page_bytes,
        }
    }

    /// Bytes of all pages.
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// A layer.
    pub(super) fn layer(&self, layer: u32) -> LayerView {
        let l = &self.layers[layer as usize];
        LayerView {
            keys: self.memory.ptr().wrapping_add(l.keys),
            values: self.memory.ptr().wrapping_add(l.values),
            page_bytes: self.page_bytes,
            shape: l.shape,
            format: self.format,
        }
    }

    /// Copies page `from` over page `to` in every layer; false where there is no such page.
    pub(super) fn copy_page(&mut self, from: u32, to: u32) -> bool {
        let (from, to) = (from as usize, to as usize);
        if from >= self.pages || to >= self.pages {
            return false;
        }
        // SAFETY: both pages are inside the buffer; no step runs.
        unsafe {
            let page = |i: usize| self.memory.ptr().add(i * self.page_bytes);
            std::ptr::copy(page(from), page(to), self.page_bytes);
        }
        true
    }

    /// Where lanes of a token go.
    pub(super) fn place(&self, layer: u32, key: bool, page: u32, token: usize) -> Place {
        let l = &self.layers[layer as usize];
        let s = l.shape;
        let (part, head, lane, at) = if key && !s.of_keys {
            (l.keys, s.key_head(), LANES, token)
        } else {
            (l.values, s.value_head(), 1, token * s.padded)
        };
        let first = page as usize * self.page_bytes + part;
        Place {
            at: (self.memory.ptr()).wrapping_add(first + at * self.format.bytes()),
            head_dim: s.head_dim,
            head,
            lane,
            format: self.format,
        }
    }
}

/// Where the lanes of one token lie in a page: lane `i` at `i / head_dim * head + i % head_dim * lane`.
#[derive(Clone, Copy)]
pub(super) struct Place {
    at: *mut u8,
    head_dim: usize,
    head: usize,
    lane: usize,
    format: KvFormat,
}

per_isa! {
    /// Stores lanes `first .. first + count` of a token.
    ///
    /// # Safety
    /// The lanes are inside the layer's width and only this thread writes them.
    pub(super) fn store(place: Place, first: usize, count: usize, from: *const f32) = store_with
}

#[inline(always)]
unsafe fn store_with<V: Vector>(place: Place, first: usize, count: usize, from: *const f32) {
    const LARGEST: f32 = 65504.0;
    let mut head = first / place.head_dim;
    let mut dim = first % place.head_dim;
    let mut i = 0;
    // SAFETY: the caller's duty.
    unsafe {
        while i < count {
            let n = (count - i).min(LANES);
            let v = if n == LANES {
                V::load(from.add(i))
            } else {
                V::load_part(from.add(i), n)
            };
            let mut halves = [0u16; LANES];
            let mut floats = [0f32; LANES];
            match place.format {
                KvFormat::F16 => {
                    let v = V::max(V::min(v, V::splat(LARGEST)), V::splat(-LARGEST));
                    V::store_f16(halves.as_mut_ptr(), v);
                }
                KvFormat::F32 => V::store(floats.as_mut_ptr(), v),
            }
            for j in 0..n {
                let at = head * place.head + dim * place.lane;
                match place.format {
                    KvFormat::F16 => *place.at.cast::<u16>().add(at) = halves[j],
                    KvFormat::F32 => *place.at.cast::<f32>().add(at) = floats[j],
                }
                dim += 1;
                if dim == place.head_dim {
                    (dim, head) = (0, head + 1);
                }
            }
            i += n;
        }
    }
}
