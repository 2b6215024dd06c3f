//! Keys and values in blocks of 32 lanes.
//!
//! A head's keys of a page are a [panel](super::panel) of sixteen outputs, one per token, so that scores are products
//! of quantized queries with a panel, as weights' are. Its values lie by blocks of 32 lanes: sixteen scales, one per
//! token, then the codes of each token, so that a value is multiplied with its probability and scale in words, as an
//! adapter's `B` is. Codes and scales are those of GGUF's Q8_0 and Q4_0, of blocks that were
//! [rotated](crate::rotation).
//!
//! Limits: heads are whole blocks, and values are not lanes of the keys.

use super::kind::{Kind, Width};
use super::kv::{KvHalf, clamp_half};
use super::panel::{GROUP, PanelLayout};
use super::quantize::InputForms;
use super::simd::{LANES, Vector};
use crate::rotation::rotate;
use crate::step::KvFormat;
use rusty_loader::formats;

/// Bytes of the scales of a page's sixteen tokens.
pub(super) const SCALES: usize = 2 * LANES;

/// How a head lies in a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvBlocks {
    /// Its keys.
    pub(super) panel: PanelLayout,
    /// What queries are quantized to.
    pub(super) forms: InputForms,
}

impl KvBlocks {
    /// The layout of a head of `head_dim` lanes; none where that is no whole number of blocks, or the format has none.
    pub(super) fn of(format: KvFormat, head_dim: usize) -> Option<Self> {
        let codec = match format {
            KvFormat::Q8_0 => &formats::Q8_0,
            KvFormat::Q4_0 => &formats::Q4_0,
            KvFormat::F32 | KvFormat::F16 | KvFormat::Bf16 => return None,
        };
        if !head_dim.is_multiple_of(GROUP) {
            return None;
        }
        let kind = Kind::of(codec)?;
        let mut forms = InputForms::default();
        forms.add_panels(&kind)?;
        Some(Self {
            panel: PanelLayout {
                codec,
                kind,
                k: head_dim,
                n: LANES,
            },
            forms,
        })
    }

    /// Bytes of a head's keys in a page.
    pub(super) fn key_head(&self) -> usize {
        self.panel.panel_bytes()
    }

    /// Bytes of a head's values in a page.
    pub(super) fn value_head(&self) -> usize {
        self.panel.groups() * self.value_group()
    }

    /// Bytes of 32 lanes of a page's values.
    fn value_group(&self) -> usize {
        SCALES + self.panel.kind.width.code_bytes()
    }
}

/// Where one token's lanes lie.
#[derive(Clone, Copy)]
pub(super) struct BlockPlace {
    /// The first head of the page.
    pub(super) at: *mut u8,
    pub(super) token: usize,
    pub(super) half: KvHalf,
    pub(super) blocks: KvBlocks,
}

/// Stores lanes `first .. first + count` of a token, whole blocks.
///
/// # Safety
/// As [`super::kv::store`].
#[inline(always)]
pub(super) unsafe fn store<V: Vector>(
    place: BlockPlace,
    first: usize,
    count: usize,
    from: *const f32,
) {
    let panel = &place.blocks.panel;
    let eight = panel.kind.width == Width::W8;
    assert!(
        first.is_multiple_of(GROUP) && count.is_multiple_of(GROUP),
        "keys and values are stored in whole blocks"
    );
    for i in (0..count).step_by(GROUP) {
        let (head, group) = ((first + i) / panel.k, (first + i) % panel.k / GROUP);
        // SAFETY: the caller's duty.
        unsafe {
            let mut lanes = [0.0; GROUP];
            let (low, high) = (V::load(from.add(i)), V::load(from.add(i + LANES)));
            V::store(lanes.as_mut_ptr(), clamp_half::<V>(low));
            V::store(lanes.as_mut_ptr().add(LANES), clamp_half::<V>(high));
            rotate(&mut lanes);
            let block = match eight {
                true => eight_bits::<V>(lanes.as_ptr()),
                false => four_bits::<V>(lanes.as_ptr()),
            };
            match place.half {
                KvHalf::Keys => place.store_key(head, group, &block),
                KvHalf::Values => place.store_value(head, group, &block),
            }
        }
    }
}

/// A block's scale and its codes: signed bytes of eight bits, or four bits plus eight.
struct Block {
    scale: u16,
    codes: [i8; GROUP],
}

impl Block {
    #[inline(always)]
    unsafe fn new<V: Vector>(scale: f32) -> Self {
        let mut halves = [0; LANES];
        // SAFETY: the caller's duty.
        unsafe { V::store_f16(halves.as_mut_ptr(), V::splat(scale)) };
        Self {
            scale: halves[0],
            codes: [0; GROUP],
        }
    }
}

/// Codes of -127 to 127.
#[inline(always)]
unsafe fn eight_bits<V: Vector>(from: *const f32) -> Block {
    // SAFETY: the caller's duty.
    unsafe {
        let (a, b) = (V::load(from), V::load(from.add(LANES)));
        let largest = V::largest(V::max(V::abs(a), V::abs(b)));
        let by = V::splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
        let mut block = Block::new::<V>(largest / 127.0);
        let codes = block.codes.as_mut_ptr();
        V::store_i8(codes, V::round(V::mul(a, by)));
        V::store_i8(codes.add(LANES), V::round(V::mul(b, by)));
        block
    }
}

/// Codes of -8 to 7, plus 8: the value of largest magnitude is -8.
#[inline(always)]
unsafe fn four_bits<V: Vector>(from: *const f32) -> Block {
    // SAFETY: the caller's duty.
    unsafe {
        let (a, b) = (V::load(from), V::load(from.add(LANES)));
        let zero = V::splat(0.0);
        let highest = V::largest(V::max(a, b));
        let lowest = V::largest(V::max(V::sub(zero, a), V::sub(zero, b)));
        let far = if lowest >= highest { -lowest } else { highest };
        let by = V::splat(if far == 0.0 { 0.0 } else { -8.0 / far });
        let mut block = Block::new::<V>(far / -8.0);
        let codes = block.codes.as_mut_ptr();
        V::store_i8(codes, nibbles::<V>(V::mul(a, by)));
        V::store_i8(codes.add(LANES), nibbles::<V>(V::mul(b, by)));
        block
    }
}

/// -8 to 8 as whole numbers of 0 to 15.
#[inline(always)]
unsafe fn nibbles<V: Vector>(v: V::F) -> V::F {
    // SAFETY: the caller's duty.
    unsafe { V::add(V::min(V::round(v), V::splat(7.0)), V::splat(8.0)) }
}

impl BlockPlace {
    #[inline(always)]
    unsafe fn store_key(&self, head: usize, group: usize, block: &Block) {
        let panel = &self.blocks.panel;
        // SAFETY: the caller's duty: head, group and token are inside the page.
        unsafe {
            let head = self.at.add(head * panel.panel_bytes());
            let codes = head.add(panel.group_at(group) + self.token * 4);
            let scales = head.add(panel.scales_at(group));
            *scales.cast::<u16>().add(self.token) = block.scale;
            let quads = block.codes.as_ptr().cast::<u32>();
            let quad = |q: usize| quads.add(q).read_unaligned();
            let vector = |v: usize| codes.add(v * 4 * LANES).cast::<u32>();
            for q in 0..GROUP / 4 {
                match panel.kind.width {
                    Width::W8 => *vector(q) = quad(q) ^ 0x8080_8080,
                    _ if q % 2 == 0 => *vector(q / 2) = quad(q) | quad(q + 1) << 4,
                    _ => {}
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_value(&self, head: usize, group: usize, block: &Block) {
        let blocks = &self.blocks;
        // SAFETY: the caller's duty: head, group and token are inside the page.
        unsafe {
            let head = self.at.add(head * blocks.value_head());
            let scales = head.add(group * blocks.value_group());
            *scales.cast::<u16>().add(self.token) = block.scale;
            let bytes = blocks.panel.kind.width.code_bytes() / LANES;
            let codes = scales.add(SCALES + self.token * bytes);
            let code = |i: usize| block.codes[i] as u8;
            for i in 0..bytes {
                *codes.add(i) = match bytes {
                    GROUP => code(i),
                    _ => code(i) | code(i + LANES) << 4,
                };
            }
        }
    }
}
