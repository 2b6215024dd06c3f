//! The paged cache of keys and values.
//!
//! A page holds all layers of its tokens, one after the other, so that a short sequence touches little memory. Keys
//! lie transposed within a layer's part, `[kv_head][head_dim][16]`, so that one vector holds the same dimension of
//! sixteen tokens and scores need no sum over lanes; values lie behind them, `[kv_head][16][head_dim]`, rows padded to
//! a vector. Where values are lanes of the keys, there are rows only, laid out as values are. The block formats lie as
//! [`super::kv_blocks`] says. Pages are resident once they are written. Values beyond a format's range are clamped to
//! it, and what is no number with them: a stored page is finite, so that it adds nothing where its probability is
//! zero.

use super::kv_blocks::{self, BlockPlace, KvBlocks};
use super::memory::Buffer;
use super::simd::{LANES, Vector, per_isa};
use crate::step::KvFormat;
use half::bf16;
use rusty_graph::{AttentionValues, KvLayer};

/// Which half of a layer's part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KvHalf {
    Keys,
    Values,
}

/// Keys and values of all layers.
pub(super) struct KvPool {
    memory: Buffer,
    layers: Vec<LayerPart>,
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
    pub(super) format: KvFormat,
    /// How heads lie in a block format.
    pub(super) blocks: Option<KvBlocks>,
}

impl PageShape {
    /// Extents of a layer's part of a page, in a format that holds it.
    pub(super) fn of(layer: &KvLayer, format: KvFormat) -> Self {
        let head_dim = layer.head_dim as usize;
        let of_keys = layer.values != AttentionValues::Own;
        Self {
            kv_heads: layer.kv_heads as usize,
            head_dim,
            padded: head_dim.next_multiple_of(LANES),
            result: Self::result_of(layer),
            of_keys,
            format,
            blocks: KvBlocks::of(format, head_dim),
        }
    }

    /// Lanes of a head's result, rounded up to a vector.
    pub(super) fn result_of(layer: &KvLayer) -> usize {
        let lanes = match layer.values {
            AttentionValues::Own => layer.head_dim,
            AttentionValues::OfKeys(lanes) => lanes,
        };
        (lanes as usize).next_multiple_of(LANES)
    }

    /// Bytes of one head's keys in a page.
    pub(super) fn key_head(&self) -> usize {
        match self.blocks {
            Some(blocks) => blocks.key_head(),
            None if self.of_keys => 0,
            None => self.head_dim * LANES * self.value_bytes(),
        }
    }

    /// Bytes of one head's values in a page.
    pub(super) fn value_head(&self) -> usize {
        match self.blocks {
            Some(blocks) => blocks.value_head(),
            None => self.padded * LANES * self.value_bytes(),
        }
    }

    /// Bytes of a value that stands alone.
    fn value_bytes(&self) -> usize {
        self.format.bytes(1) as usize
    }
}

/// Lanes of the widest head that is stored in blocks; 0 where none is.
pub(super) fn block_lanes(layers: &[KvLayer], format: KvFormat) -> usize {
    let blocks = |layer| PageShape::of(layer, format).blocks;
    let lanes = layers.iter().filter_map(blocks).map(|b| b.panel.k);
    lanes.max().unwrap_or(0)
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
}

impl KvPool {
    /// Pages for all layers, in a format that holds them.
    pub(super) fn new(layers: &[KvLayer], pages: u32, format: KvFormat) -> Self {
        let pages = pages as usize;
        let mut page_bytes = 0;
        let mut place = |bytes: usize| {
            let at = page_bytes;
            page_bytes += bytes.next_multiple_of(64);
            at
        };
        let part = |layer| {
            let shape = PageShape::of(layer, format);
            LayerPart {
                keys: place(shape.kv_heads * shape.key_head()),
                values: place(shape.kv_heads * shape.value_head()),
                shape,
            }
        };
        let layers = layers.iter().map(part).collect();
        Self {
            layers,
            memory: Buffer::new(pages * page_bytes),
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
    pub(super) fn place(&self, layer: u32, half: KvHalf, page: u32, token: usize) -> Place {
        let l = &self.layers[layer as usize];
        let s = l.shape;
        let transposed = half == KvHalf::Keys && !s.of_keys;
        let (part, head) = match transposed {
            true => (l.keys, s.key_head()),
            false => (l.values, s.value_head()),
        };
        let first = page as usize * self.page_bytes + part;
        let at = self.memory.ptr().wrapping_add(first);
        if let Some(blocks) = s.blocks {
            return Place::Blocks(BlockPlace {
                at,
                token,
                half,
                blocks,
            });
        }
        let (token, lane) = match transposed {
            true => (token, LANES),
            false => (token * s.padded, 1),
        };
        Place::Floats(FloatPlace {
            at: at.wrapping_add(token * s.value_bytes()),
            head_dim: s.head_dim,
            head,
            lane: lane * s.value_bytes(),
            format: s.format,
        })
    }
}

/// Where the lanes of one token lie in a page.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Floats(FloatPlace),
    Blocks(BlockPlace),
}

/// Lane `i` at byte `i / head_dim * head + i % head_dim * lane`.
#[derive(Clone, Copy)]
pub(super) struct FloatPlace {
    at: *mut u8,
    head_dim: usize,
    head: usize,
    lane: usize,
    format: KvFormat,
}

per_isa! {
    /// Stores lanes `first .. first + count` of a token; they are whole blocks where the format has blocks.
    ///
    /// # Safety
    /// The lanes are inside the layer's width and only this thread writes them.
    pub(super) fn store(place: Place, first: usize, count: usize, from: *const f32) = store_with
}

#[inline(always)]
unsafe fn store_with<V: Vector>(place: Place, first: usize, count: usize, from: *const f32) {
    // SAFETY: the caller's duty.
    unsafe {
        match place {
            Place::Floats(place) => store_floats::<V>(place, first, count, from),
            Place::Blocks(place) => kv_blocks::store::<V>(place, first, count, from),
        }
    }
}

#[inline(always)]
unsafe fn store_floats<V: Vector>(place: FloatPlace, first: usize, count: usize, from: *const f32) {
    let mut at = place.at.wrapping_add(first / place.head_dim * place.head);
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
            let v = clamp::<V>(v, place.format.largest());
            let mut halves = [0u16; LANES];
            let mut floats = [0f32; LANES];
            match place.format {
                KvFormat::F16 => V::store_f16(halves.as_mut_ptr(), v),
                KvFormat::Bf16 => {
                    V::store(floats.as_mut_ptr(), v);
                    halves = floats.map(|v| bf16::from_f32(v).to_bits());
                }
                _ => V::store(floats.as_mut_ptr(), v),
            }
            for j in 0..n {
                let to = at.add(dim * place.lane);
                match place.format {
                    KvFormat::F32 => *to.cast::<f32>() = floats[j],
                    _ => *to.cast::<u16>() = halves[j],
                }
                dim += 1;
                if dim == place.head_dim {
                    dim = 0;
                    at = at.wrapping_add(place.head);
                }
            }
            i += n;
        }
    }
}

/// The nearest values of magnitudes up to `most`; those for what is no number.
#[inline(always)]
unsafe fn clamp<V: Vector>(v: V::F, most: f32) -> V::F {
    // SAFETY: the caller's duty.
    unsafe { V::max(V::min(v, V::splat(most)), V::splat(-most)) }
}

/// The nearest values in half precision's range.
#[inline(always)]
pub(super) unsafe fn clamp_half<V: Vector>(v: V::F) -> V::F {
    // SAFETY: the caller's duty.
    unsafe { clamp::<V>(v, KvFormat::F16.largest()) }
}
