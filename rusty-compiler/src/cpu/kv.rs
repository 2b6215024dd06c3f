//! The paged cache of keys and values.
//!
//! Keys lie transposed within a page, `[kv_head][head_dim][16]`, so that one vector holds the same dimension
//! of sixteen tokens and scores need no sum over lanes; values lie `[kv_head][16][head_dim]`, rows padded to
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
    layers: Vec<LayerPool>,
    format: KvFormat,
    pages: usize,
}

struct LayerPool {
    keys: Buffer,
    values: Buffer,
    shape: PageShape,
}

/// Extents of one layer's page.
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
    /// Extents of a layer's page.
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
    pub(super) keys: *const u8,
    pub(super) values: *const u8,
    pub(super) shape: PageShape,
    pub(super) format: KvFormat,
}

impl KvPool {
    /// Pages for all layers.
    pub(super) fn new(layers: &[KvLayer], pages: u32, format: KvFormat) -> Self {
        let pages = pages as usize;
        let pool = |layer: &KvLayer| {
            let shape = PageShape::of(layer);
            let heads = pages * shape.kv_heads * format.bytes();
            LayerPool {
                keys: Buffer::new(heads * shape.key_head()),
                values: Buffer::new(heads * shape.value_head()),
                shape,
            }
        };
        Self {
            layers: layers.iter().map(pool).collect(),
            format,
            pages,
        }
    }

    /// Bytes of all pages.
    pub(super) fn bytes(&self) -> usize {
        self.layers
            .iter()
            .map(|l| l.keys.bytes() + l.values.bytes())
            .sum()
    }

    /// A layer.
    pub(super) fn layer(&self, layer: u32) -> LayerView {
        let l = &self.layers[layer as usize];
        LayerView {
            keys: l.keys.ptr(),
            values: l.values.ptr(),
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
        if from == to {
            return true;
        }
        for l in &self.layers {
            let bytes = l.shape.kv_heads * self.format.bytes();
            for (buffer, page) in [
                (&l.keys, l.shape.key_head() * bytes),
                (&l.values, l.shape.value_head() * bytes),
            ] {
                // SAFETY: both pages are inside the buffer and differ; no step runs.
                unsafe {
                    let base = buffer.ptr();
                    std::ptr::copy_nonoverlapping(base.add(from * page), base.add(to * page), page);
                }
            }
        }
        true
    }

    /// Where lanes of a token go.
    pub(super) fn place(&self, layer: u32, key: bool, page: u32, token: usize) -> Place {
        let l = &self.layers[layer as usize];
        let s = l.shape;
        let (buffer, head, lane, at) = if key && !s.of_keys {
            (&l.keys, s.key_head(), LANES, token)
        } else {
            (&l.values, s.value_head(), 1, token * s.padded)
        };
        let first = page as usize * s.kv_heads * head + at;
        Place {
            at: buffer.ptr().wrapping_add(first * self.format.bytes()),
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
