//! Block-quantized matrices, repacked into panels of sixteen output columns.
//!
//! A vector instruction that multiplies four byte pairs per lane wants the same four inputs of sixteen
//! outputs side by side. A panel holds sixteen rows of `W` in that order: for each group of 32 inputs, eight
//! *quads* (four consecutive inputs) of 16 x 4 codes each, in *planes* of some of their bits, then the group's scales of
//! the sixteen rows; before the first group of each block the block's scales. So a panel is one run of bytes, read from
//! its first to its last:
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

/// Inputs per group: what one scale covers, of inputs where weights have no blocks of several.
pub(super) const GROUP: usize = 32;
/// Inputs per half of a group.
pub(super) const HALF: usize = 16;

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

    /// Bytes of a group: its codes, then its scales.
    pub(super) fn group_bytes(&self) -> usize {
        self.kind.width.code_bytes() + self.kind.scaling.group_bytes()
    }

    /// Offset of group `g`.
    pub(super) fn group_at(&self, g: usize) -> usize {
        let blocks = g / self.block_groups() + 1;
        blocks * self.kind.scaling.block_bytes() + g * self.group_bytes()
    }

    /// Offset of the scales of group `g`.
    pub(super) fn scales_at(&self, g: usize) -> usize {
        self.group_at(g) + self.kind.width.code_bytes()
    }

    /// Offset of the scales of block `block`.
    pub(super) fn block_at(&self, block: usize) -> usize {
        self.group_at(block * self.block_groups()) - self.kind.scaling.block_bytes()
    }

    /// Bytes of one panel.
    pub(super) fn panel_bytes(&self) -> usize {
        self.block_at(self.k / self.codec.block_len)
            .next_multiple_of(64)
    }

    /// Number of panels.
    pub(super) fn panels(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Bytes of all panels.
    pub(super) fn bytes(&self) -> usize {
        self.panels() * self.panel_bytes()
    }

    /// The values of row `row`, read back from all panels: what the format's own decoder gives.
    pub(super) fn unpack_row(&self, panels: &[u8], row: usize, out: &mut [f32]) {
        let panel = &panels[row / LANES * self.panel_bytes()..][..self.panel_bytes()];
        let row = row % LANES;
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let codes = &panel[self.group_at(group)..self.scales_at(group)];
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
        let supers = self.block_at(group / self.block_groups()) + row * 2;
        let mut at = self.scales_at(group);
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
