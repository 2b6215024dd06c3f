//! Block-quantized matrices, repacked into panels of sixteen output columns.
//!
//! A vector instruction that multiplies four byte pairs per lane wants the same four inputs of sixteen
//! outputs side by side. A panel holds sixteen rows of `W` in that order: for each group of 32 inputs, eight
//! *quads* (four consecutive inputs) of 16 x 4 codes each, in *planes* of some of their bits, then the scales of the
//! sixteen rows:
//!
//! ```text
//! four bits   4 x 64 bytes; vector j: low nibbles quad 2j, high nibbles quad 2j + 1
//! two bits    2 x 64 bytes; vector h: bits 2t.. quad 4h + t
//! one bit     1 x 64 bytes: bit q: quad q
//! eight bits  8 x 64 bytes; vector q: quad q; codes are stored plus 128 where they are signed
//! ```
//!
//! Codes of three bits have a plane of two and one of one, of five one of four and one of one, of six one of four and
//! one of two. Grids are resolved: their coordinates are the codes. Packing is lossless. Limits: groups of 32 or 16
//! inputs, and blocks that are a multiple of 32.

use super::kind::{Kind, Scaling, Width};
use super::simd::LANES;
use half::{bf16, f16};
use rusty_loader::Codec;
use rusty_loader::formats::{BitField, Levels, MAX_BLOCK_LEN, Part};

/// Inputs per group: what one activation scale covers.
pub(super) const GROUP: usize = 32;
/// Inputs per half of a group.
const HALF: usize = 16;

/// How a matrix `[n, k]` of a format lies in panels.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelLayout {
    pub(super) codec: &'static Codec,
    pub(super) kind: Kind,
    pub(super) k: usize,
    pub(super) n: usize,
}

impl PanelLayout {
    /// Groups per row.
    pub(super) fn groups(&self) -> usize {
        self.k / GROUP
    }

    /// Groups that share the scales of a block.
    pub(super) fn block_groups(&self) -> usize {
        self.codec.block_len / GROUP
    }

    /// Offset of the first per-group scale.
    pub(super) fn scales_at(&self) -> usize {
        self.groups() * self.kind.width.code_bytes()
    }

    /// Offset of the first per-block scale.
    pub(super) fn supers_at(&self) -> usize {
        self.scales_at() + self.groups() * self.kind.scaling.group_bytes()
    }

    /// Bytes of one panel.
    pub(super) fn panel_bytes(&self) -> usize {
        let blocks = self.k / self.codec.block_len;
        (self.supers_at() + blocks * self.kind.scaling.block_bytes()).next_multiple_of(64)
    }

    /// Number of panels.
    pub(super) fn panels(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Bytes of all panels.
    pub(super) fn bytes(&self) -> usize {
        self.panels() * self.panel_bytes()
    }

    /// Packs panel `panel` of the stored matrix into `out`, which holds [`PanelLayout::panel_bytes`] and is
    /// written whole. Rows past `n` have zero scales.
    pub(super) fn pack(&self, stored: &[u8], panel: usize, out: &mut [u8]) {
        let c = self.codec;
        let row_bytes = self.k / c.block_len * c.block_bytes;
        let rows = (self.n - panel * LANES).min(LANES);
        let stored = &stored[panel * LANES * row_bytes..][..rows * row_bytes];
        if rows < LANES {
            out.fill(0);
        }
        let mut codes = [[0u8; MAX_BLOCK_LEN]; LANES];
        let nibbles = self.nibbles();
        let blocks = self.k / c.block_len;
        for block in 0..blocks {
            for (r, row) in stored.chunks_exact(row_bytes).enumerate() {
                let bytes = &row[block * c.block_bytes..][..c.block_bytes];
                self.pack_scales(bytes, block, r, out);
                if let Some(nibbles) = &nibbles {
                    let first = block * self.block_groups() * self.kind.width.code_bytes();
                    nibbles.pack(bytes, r, &mut out[first..]);
                    continue;
                }
                let codes = &mut codes[r][..c.block_len];
                codes.fill(0);
                c.codes(bytes, codes);
                if matches!(c.levels, Levels::Signed) {
                    codes.iter_mut().for_each(|code| *code ^= 0x80);
                }
            }
            if nibbles.is_some() {
                continue;
            }
            for part in 0..self.block_groups() {
                let group = block * self.block_groups() + part;
                let bytes = self.kind.width.code_bytes();
                let out = &mut out[group * bytes..][..bytes];
                self.pack_codes(&codes, part * GROUP, out);
            }
        }
    }

    /// Where the codes of a block lie, if they are plain nibbles.
    fn nibbles(&self) -> Option<Nibbles> {
        let [Part::Bits(field)] = self.codec.codes else {
            return None;
        };
        [16, 32]
            .into_iter()
            .find(|lanes| *field == BitField::lanes(field.first / 8, 4, *lanes, 0))
            .map(|lanes| Nibbles {
                first: field.first / 8,
                lanes,
                groups: self.block_groups(),
            })
    }

    fn pack_codes(&self, codes: &[[u8; MAX_BLOCK_LEN]; LANES], at: usize, out: &mut [u8]) {
        for (r, codes) in codes.iter().enumerate() {
            let quads = codes[at..at + GROUP].as_chunks::<4>().0;
            let quad = |q: usize| u32::from_le_bytes(quads[q]);
            let mut put = |vector: usize, v: u32| {
                out[vector * 64 + r * 4..][..4].copy_from_slice(&v.to_le_bytes());
            };
            let low = |mask: u32, from: u32, q: usize| quad(q) >> from & mask;
            let nibbles = |put: &mut dyn FnMut(usize, u32)| {
                const MASK: u32 = 0x0f0f_0f0f;
                (0..4).for_each(|j| put(j, low(MASK, 0, 2 * j) | low(MASK, 0, 2 * j + 1) << 4));
            };
            let pairs = |put: &mut dyn FnMut(usize, u32), plane: usize, from: u32| {
                const MASK: u32 = 0x0303_0303;
                (0..2).for_each(|h| {
                    let pair = |t: usize| low(MASK, from, 4 * h + t) << (2 * t);
                    put(plane + h, pair(0) | pair(1) | pair(2) | pair(3));
                });
            };
            let bits = |put: &mut dyn FnMut(usize, u32), plane: usize, from: u32| {
                const MASK: u32 = 0x0101_0101;
                put(plane, (0..8).fold(0, |v, q| v | low(MASK, from, q) << q));
            };
            match self.kind.width {
                Width::W8 => (0..8).for_each(|q| put(q, quad(q))),
                Width::W4 => nibbles(&mut put),
                Width::W5 => {
                    nibbles(&mut put);
                    bits(&mut put, 4, 4);
                }
                Width::W6 => {
                    nibbles(&mut put);
                    pairs(&mut put, 4, 4);
                }
                Width::W2 => pairs(&mut put, 0, 0),
                Width::W3 => {
                    pairs(&mut put, 0, 0);
                    bits(&mut put, 2, 2);
                }
            }
        }
    }

    fn pack_scales(&self, block: &[u8], index: usize, row: usize, out: &mut [u8]) {
        let c = self.codec;
        let scaling = self.kind.scaling;
        let supers = self.supers_at() + index * scaling.block_bytes() + row * 2;
        match scaling {
            Scaling::Byte | Scaling::Byte16 => {
                put(
                    out,
                    supers,
                    f16::from_f32(c.scale.unit.at(block, 0)).to_bits(),
                );
            }
            Scaling::ByteMin | Scaling::ByteMin16 => {
                put(
                    out,
                    supers,
                    f16::from_f32(c.scale.unit.at(block, 0)).to_bits(),
                );
                let min = c.min.map_or(0.0, |m| m.unit.at(block, 0) * m.factor);
                put(out, supers + 2 * LANES, f16::from_f32(min).to_bits());
            }
            _ => {}
        }
        // A group of the format may cover several of ours, or half of one.
        let unit = if scaling.halves() { HALF } else { GROUP };
        let per_unit = scaling.group_bytes() / (GROUP / unit);
        let first = self.scales_at() + index * self.block_groups() * scaling.group_bytes();
        for i in 0..c.block_len / unit {
            let g = i * unit / c.group;
            let at = first + i * per_unit;
            let min = || c.min.map_or(0.0, |m| m.at(block, g));
            let steps = |s: &rusty_loader::formats::Scale| s.steps.map_or(1, |s| s.at(block, g));
            match scaling {
                Scaling::Half | Scaling::Half16 => {
                    put(
                        out,
                        at + row * 2,
                        f16::from_f32(c.scale.at(block, g)).to_bits(),
                    );
                }
                Scaling::HalfMin => {
                    put(
                        out,
                        at + row * 2,
                        f16::from_f32(c.scale.at(block, g)).to_bits(),
                    );
                    put(
                        out,
                        at + 2 * LANES + row * 2,
                        f16::from_f32(min()).to_bits(),
                    );
                }
                Scaling::Brain => {
                    put(
                        out,
                        at + row * 2,
                        bf16::from_f32(c.scale.at(block, g)).to_bits(),
                    );
                }
                Scaling::Byte | Scaling::Byte16 => out[at + row] = steps(&c.scale) as u8,
                Scaling::ByteMin | Scaling::ByteMin16 => {
                    out[at + row] = steps(&c.scale) as u8;
                    out[at + LANES + row] = c.min.as_ref().map_or(0, steps) as u8;
                }
            }
        }
    }

    /// The values of row `row`, read back from all panels: what the format's own decoder gives.
    pub(super) fn unpack_row(&self, panels: &[u8], row: usize, out: &mut [f32]) {
        let panel = &panels[row / LANES * self.panel_bytes()..][..self.panel_bytes()];
        let row = row % LANES;
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let bytes = self.kind.width.code_bytes();
            let codes = &panel[group * bytes..][..bytes];
            for (half, out) in out.chunks_exact_mut(HALF).enumerate() {
                let (scale, min) = self.scale_of(panel, group, half, row);
                for (i, out) in out.iter_mut().enumerate() {
                    let code = self.code_of(codes, half * HALF + i, row);
                    let product = scale * self.kind.level(code) as f32;
                    *out = match self.kind.scaling.has_min() {
                        true => product - min,
                        false => product,
                    };
                }
            }
        }
    }

    /// Code `i` of a group.
    fn code_of(&self, codes: &[u8], i: usize, row: usize) -> u8 {
        let (quad, byte) = (i / 4, row * 4 + i % 4);
        let nibble = || codes[quad / 2 * 64 + byte] >> (quad % 2 * 4) & 15;
        let pair = |plane: usize| codes[(plane + quad / 4) * 64 + byte] >> (quad % 4 * 2) & 3;
        let bit = |plane: usize| codes[plane * 64 + byte] >> quad & 1;
        match self.kind.width {
            Width::W8 => codes[quad * 64 + byte],
            Width::W4 => nibble(),
            Width::W5 => nibble() | bit(4) << 4,
            Width::W6 => nibble() | pair(4) << 4,
            Width::W2 => pair(0),
            Width::W3 => pair(0) | bit(2) << 2,
        }
    }

    /// Scale and minimum of a half of a group.
    fn scale_of(&self, panel: &[u8], group: usize, half: usize, row: usize) -> (f32, f32) {
        let scaling = self.kind.scaling;
        let word = |at: usize| [panel[at], panel[at + 1]];
        let f16_at = |at: usize| f16::from_le_bytes(word(at)).to_f32();
        let byte = |at: usize| f32::from(panel[at] as i8);
        let supers =
            self.supers_at() + group / self.block_groups() * scaling.block_bytes() + row * 2;
        let mut at = self.scales_at() + group * scaling.group_bytes();
        if scaling.halves() {
            at += half * scaling.group_bytes() / 2;
        }
        match scaling {
            Scaling::Half | Scaling::Half16 => (f16_at(at + row * 2), 0.0),
            Scaling::HalfMin => (f16_at(at + row * 2), f16_at(at + 2 * LANES + row * 2)),
            Scaling::Brain => (bf16::from_le_bytes(word(at + row * 2)).to_f32(), 0.0),
            Scaling::Byte | Scaling::Byte16 => {
                (f16_at(supers) * byte(at + row) * self.kind.factor, 0.0)
            }
            Scaling::ByteMin | Scaling::ByteMin16 => (
                f16_at(supers) * byte(at + row) * self.kind.factor,
                f16_at(supers + 2 * LANES) * byte(at + LANES + row),
            ),
        }
    }
}

/// Codes of four bits that lie in `lanes` bytes at a time, low halves first: words of a block become words of a panel without
/// being taken apart.
struct Nibbles {
    first: usize,
    lanes: usize,
    groups: usize,
}

impl Nibbles {
    /// Packs row `r` of a block into its groups of a panel, as [`PanelLayout::pack_codes`] does with codes of this width.
    fn pack(&self, block: &[u8], r: usize, out: &mut [u8]) {
        const LOW: u32 = 0x0f0f_0f0f;
        let words = block[self.first..].as_chunks::<4>().0;
        let word = |i: usize| u32::from_le_bytes(words[i]);
        // A group's quads, four codes each: the low halves of some words, or the high ones.
        let quads = GROUP / 4;
        for group in 0..self.groups {
            for j in 0..quads / 2 {
                let (at, high) = match self.lanes {
                    16 => (group * quads / 2 + 2 * j % (quads / 2), j >= quads / 4),
                    _ => (group / 2 * quads + 2 * j, group % 2 == 1),
                };
                let (a, b) = (word(at), word(at + 1));
                let pair = match high {
                    false => a & LOW | (b & LOW) << 4,
                    true => a >> 4 & LOW | b & !LOW,
                };
                let vector = group * quads / 2 + j;
                out[vector * 64 + r * 4..][..4].copy_from_slice(&pair.to_le_bytes());
            }
        }
    }
}

/// Stores sixteen bits.
fn put(out: &mut [u8], at: usize, bits: u16) {
    out[at..at + 2].copy_from_slice(&bits.to_le_bytes());
}
