//! How the codes and scales of a block format lie in panels, and so which kernel multiplies them.
//!
//! Everything follows from the [`Codec`]: the width of its codes, what they stand for and how its groups are scaled. A
//! format that fits one of the combinations in [`forms`](super::forms) needs no code here.

use super::panel::GROUP;
use super::simd::LANES;
use rusty_loader::Codec;
use rusty_loader::formats::{Levels, Unit};

/// Bits of a stored code: those of the format, rounded up to what the planes of a panel hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    W2,
    W3,
    W4,
    W5,
    W6,
    W8,
}

impl Width {
    fn of(bits: u32) -> Option<Self> {
        Some(match bits {
            1 | 2 => Width::W2,
            3 => Width::W3,
            4 => Width::W4,
            5 => Width::W5,
            6 => Width::W6,
            7 | 8 => Width::W8,
            _ => return None,
        })
    }

    pub(super) const fn bits(self) -> usize {
        match self {
            Width::W2 => 2,
            Width::W3 => 3,
            Width::W4 => 4,
            Width::W5 => 5,
            Width::W6 => 6,
            Width::W8 => 8,
        }
    }

    /// Bytes of codes per group and panel.
    pub(super) const fn code_bytes(self) -> usize {
        self.bits() * 4 * LANES
    }
}

/// How the groups of a panel are scaled. A *half* is sixteen inputs, a *group* 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scaling {
    /// An f16 per group.
    Half,
    /// An f16 and an f16 minimum per group.
    HalfMin,
    /// A bf16 per group.
    Brain,
    /// An f16 per half.
    Half16,
    /// A signed byte per group, an f16 per block.
    Byte,
    /// A signed byte per half, an f16 per block.
    Byte16,
    /// Signed bytes for scale and minimum per group, an f16 pair per block.
    ByteMin,
    /// Signed bytes for scale and minimum per half, an f16 pair per block.
    ByteMin16,
}

impl Scaling {
    fn of(codec: &Codec) -> Option<Self> {
        let halves = codec.group == 16;
        let whole = codec.group.is_multiple_of(32);
        let per_group = codec.group == codec.block_len;
        let min = codec.min.as_ref().map(|m| m.steps.is_some());
        let stepped =
            codec.scale.steps.is_some() || !per_group || codec.group > 32 || min == Some(true);
        Some(match (codec.scale.unit, stepped, min) {
            (Unit::F16(_), false, None) if whole => Scaling::Half,
            (Unit::F16(_), false, Some(false)) if whole => Scaling::HalfMin,
            (Unit::HalfE8M0(_), false, None) if whole => Scaling::Brain,
            (Unit::E4M3(_), _, None) if halves => Scaling::Half16,
            (Unit::F16(_), true, None) if whole => Scaling::Byte,
            (Unit::F16(_), true, None) if halves => Scaling::Byte16,
            (Unit::F16(_), true, Some(true)) if codec.group == 32 => Scaling::ByteMin,
            (Unit::F16(_), true, Some(true)) if halves => Scaling::ByteMin16,
            _ => return None,
        })
    }

    /// Whether sixteen inputs share a scale.
    pub(super) const fn halves(self) -> bool {
        matches!(self, Scaling::Half16 | Scaling::Byte16 | Scaling::ByteMin16)
    }

    /// Whether something is subtracted after scaling.
    pub(super) const fn has_min(self) -> bool {
        matches!(
            self,
            Scaling::HalfMin | Scaling::ByteMin | Scaling::ByteMin16
        )
    }

    /// Bytes of scales per group and panel.
    pub(super) const fn group_bytes(self) -> usize {
        match self {
            Scaling::Byte => LANES,
            Scaling::Half | Scaling::Brain | Scaling::Byte16 | Scaling::ByteMin => 2 * LANES,
            Scaling::HalfMin | Scaling::Half16 | Scaling::ByteMin16 => 4 * LANES,
        }
    }

    /// Bytes of scales per block and panel.
    pub(super) const fn block_bytes(self) -> usize {
        match self {
            Scaling::Half | Scaling::HalfMin | Scaling::Brain | Scaling::Half16 => 0,
            Scaling::Byte | Scaling::Byte16 => 2 * LANES,
            Scaling::ByteMin | Scaling::ByteMin16 => 4 * LANES,
        }
    }

    /// Whether groups have steps, and what these are multiplied with is a block's.
    pub(super) const fn has_blocks(self) -> bool {
        self.block_bytes() > 0
    }

    /// Whether minima are such steps, too.
    pub(super) const fn has_min_steps(self) -> bool {
        self.has_blocks() && self.has_min()
    }

    /// Scales per group.
    pub(super) const fn pieces(self) -> usize {
        if self.halves() { 2 } else { 1 }
    }
}

/// How a stored code becomes the unsigned byte that is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoding {
    /// It is that byte, below 128.
    Plain,
    /// It is that byte.
    Wide,
    /// By table, all bytes below 128.
    Lookup,
    /// By table.
    LookupWide,
}

/// The kernel of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kind {
    pub(super) width: Width,
    pub(super) scaling: Scaling,
    pub(super) decoding: Decoding,
    /// What the byte of level 0 is.
    pub(super) zero: i32,
    /// Bytes by code, for the decodings by table.
    pub(super) table: [u8; 16],
    /// Factor on the scales of blocks.
    pub(super) factor: f32,
    /// Groups of which the inputs share a scale: a block's, where there are such.
    pub(super) span: usize,
}

/// What the bytes' zero makes of a group of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Where integer sums go out from: minus this number times the sum of the inputs' codes.
    Zero(i32),
    /// The same for bytes that are multiplied in full width.
    Wide,
    /// Sums of inputs, by which minima are multiplied.
    Sums,
    /// Sums of the inputs' codes, words of two bytes side by side, for minima in steps of a block's.
    CodeSums,
}

impl Kind {
    /// The kernel for a format, or `None` where none fits it.
    pub(super) fn of(codec: &Codec) -> Option<Self> {
        let width = Width::of(codec.code_bits())?;
        let scaling = Scaling::of(codec)?;
        let mut table = [0; 16];
        let (decoding, zero) = match codec.levels {
            Levels::Offset(zero) if width != Width::W8 => (Decoding::Plain, zero),
            Levels::Signed if codec.code_bits() == 8 => (Decoding::Wide, 128),
            Levels::Table(levels) if levels.len() <= 16 => {
                let lowest = -levels.iter().map(|l| i32::from(*l)).min()?.min(0);
                let highest = i32::from(*levels.iter().max()?);
                let (decoding, zero) = match lowest + highest < 128 {
                    true => (Decoding::Lookup, lowest),
                    false => (Decoding::LookupWide, 128),
                };
                for (byte, level) in table.iter_mut().zip(levels) {
                    *byte = (i32::from(*level) + zero) as u8;
                }
                (decoding, zero)
            }
            _ => return None,
        };
        let kind = Self {
            width,
            scaling,
            decoding,
            zero,
            table,
            factor: codec.scale.factor,
            span: match scaling.has_blocks() {
                true => codec.block_len / GROUP,
                false => 1,
            },
        };
        let fits = codec.block_len.is_multiple_of(GROUP) && (!scaling.has_min() || zero == 0);
        (fits && kind.has_kernel()).then_some(kind)
    }

    /// What inputs need beside their codes.
    pub(super) fn start(&self) -> (Start, bool) {
        let start = match self.decoding {
            _ if self.scaling.has_min_steps() => Start::CodeSums,
            _ if self.scaling.has_min() => Start::Sums,
            Decoding::Plain | Decoding::Lookup => Start::Zero(self.zero),
            Decoding::Wide | Decoding::LookupWide => Start::Wide,
        };
        (start, self.scaling.halves())
    }

    /// What a stored code stands for.
    pub(super) fn level(&self, code: u8) -> i32 {
        let byte = match self.decoding {
            Decoding::Plain | Decoding::Wide => code,
            Decoding::Lookup | Decoding::LookupWide => self.table[usize::from(code & 15)],
        };
        i32::from(byte) - self.zero
    }
}
