//! Codes of a run as signed bytes, four to a word, for products of bytes with bytes.

use super::decode::RUN;
use super::gather::{bit_row, is_bit_row, is_wordwise, words_of};
use cubecl::prelude::*;
use rusty_loader::Format;
use rusty_loader::formats::{BitField, Codec, Levels, Part};

/// Words of a run's codes.
pub const WORDS: usize = RUN / 4;

/// How signed bytes become levels: `level = byte - offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCodes {
    /// Bits of each byte that differ from the code's.
    flip: u32,
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

/// The bytes of the run whose first element is `first`.
#[cube]
pub fn byte_codes(
    words: &[u32],
    block: u32,
    first: u32,
    #[comptime] codec: &'static Codec,
) -> Array<u32> {
    let flip = comptime!(ByteCodes::of(codec).map_or(0, |c| c.flip));
    let mut bytes = Array::<u32>::new(WORDS);
    #[unroll]
    for w in 0..WORDS {
        bytes[w] = comptime!(each(flip)).runtime();
    }
    #[unroll]
    for p in 0..comptime!(codec.codes.len()) {
        if let Part::Bits(field) = comptime!(codec.codes[p]) {
            add_field(
                words,
                block,
                first,
                &mut bytes,
                field,
                comptime!(codec.block_bytes),
            );
        }
    }
    bytes
}

/// Flips a run's bytes by one field's bits.
#[cube]
fn add_field(
    words: &[u32],
    block: u32,
    first: u32,
    bytes: &mut Array<u32>,
    #[comptime] field: BitField,
    #[comptime] block_bytes: usize,
) {
    if comptime!(is_wordwise(&field)) {
        let read = words_of(words, block, first, field, block_bytes);
        #[unroll]
        for w in 0..WORDS {
            let mut bits = read[w];
            if comptime!(field.bits < 8) {
                bits &= comptime!(each((1 << field.bits) - 1));
            }
            bytes[w] ^= bits << comptime!(field.place);
        }
    } else {
        let all = bit_row(words, block, first, field);
        #[unroll]
        for w in 0..WORDS {
            let four = (all >> comptime!(w as u32 * 4)) & 15;
            // One product lays four bits a byte apart.
            let apart = (four * 0x0020_4081) & 0x0101_0101;
            bytes[w] ^= apart << comptime!(field.place);
        }
    }
}

/// A byte in each of a word's.
fn each(byte: u32) -> u32 {
    byte * 0x0101_0101
}
