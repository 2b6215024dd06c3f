//! Which formats can be multiplied as bytes: by how their codes lie.

use rusty_loader::Format;
use rusty_loader::formats::{BitField, Codec, Levels, Part};

/// Elements decoded together.
pub const RUN: usize = 16;

/// How signed bytes become levels: `level = byte - offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCodes {
    /// Bits of each byte that differ from the code's.
    pub(crate) flip: u32,
    /// What is subtracted.
    pub offset: i32,
}

impl ByteCodes {
    /// Those of a format whose levels are codes less a constant and whose codes' bits lie a byte, or a bit, beside each other.
    pub fn of(codec: &Codec) -> Option<Self> {
        let readable =
            |p: &Part| matches!(p, Part::Bits(field) if is_wordwise(field) || is_bit_row(field));
        if !codec.codes.iter().all(readable) {
            return None;
        }
        // The highest bit of a code: flipped, it turns two's complement of its width into codes less a constant, and codes of
        // eight bits into two's complement.
        let high = 1 << (codec.code_bits() - 1);
        let (flip, offset) = match (codec.levels, codec.code_bits()) {
            (Levels::Offset(by), ..8) => (0, by),
            (Levels::Offset(by), 8) => (high, by - 128),
            (Levels::Signed, ..8) => (high, high as i32),
            (Levels::Signed, 8) => (0, 0),
            _ => return None,
        };
        Some(Self { flip, offset })
    }

    /// Whether weights of a format can be multiplied as bytes.
    pub fn serve(format: Format) -> bool {
        matches!(format, Format::Blocks(codec) if Self::of(codec).is_some())
    }
}

/// Whether the groups of a run are one per element, in consecutive bytes at one shift.
pub fn is_wordwise(field: &BitField) -> bool {
    field.span == 1
        && field.first.is_multiple_of(8)
        && field.chunk.is_multiple_of(8)
        && field.lanes.is_multiple_of(RUN)
        && field.per.is_multiple_of(field.lanes)
}

/// Whether groups are single bits, one per element, without a gap.
pub fn is_bit_row(field: &BitField) -> bool {
    field.span == 1 && field.bits == 1 && field.lanes == 1 && field.per == field.chunk
}
