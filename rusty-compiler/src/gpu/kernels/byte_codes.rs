//! Codes of a run as signed bytes, four to a word, for products of bytes with bytes.

use super::decode::RUN;
use super::gather::{bit_row, words_of};
use crate::plan::byte_codes::{ByteCodes, is_wordwise};
use cubecl::prelude::*;
use rusty_loader::formats::{BitField, Codec, Part};

/// Words of a run's codes.
pub const WORDS: usize = RUN / 4;

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
