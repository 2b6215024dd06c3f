//! How the bits of a field of block formats are read: word by word where a run's lie in consecutive bytes, else group by group.

use super::bits::{Reach, bits_at};
use super::decode::RUN;
use super::env::is_cuda;
use crate::plan::byte_codes::is_bit_row;
use cubecl::prelude::*;
use rusty_loader::formats::BitField;

/// Whether a run's bytes of a field that is read word by word begin at multiples of sixteen, where one read takes them.
fn is_wide(field: &BitField, block_bytes: usize) -> bool {
    let all = [block_bytes * 8, field.first, field.chunk];
    all.iter().all(|bits| bits.is_multiple_of(128))
}

/// Flips a run's codes by one field's bits, the lowest at bit `to`, word by word.
#[cube]
pub fn gather_words(
    words: &[u32],
    block: u32,
    first: u32,
    codes: &mut Array<u32>,
    #[comptime] to: u32,
    #[comptime] field: BitField,
    #[comptime] block_bytes: usize,
) {
    let mask = comptime!(((1u32 << field.bits) - 1) << to);
    let read = words_of(words, block, first, field, block_bytes);
    #[unroll]
    for w in 0..comptime!(RUN / 4) {
        #[unroll]
        for j in 0..4usize {
            let from = comptime!(j as u32 * 8);
            let bits = if comptime!(from > to) {
                read[w] >> comptime!(from - to)
            } else {
                read[w] << comptime!(to - from)
            };
            codes[comptime!(w * 4 + j)] ^= bits & mask;
        }
    }
}

/// The words that hold a run's groups of a field that is read word by word: an element's group is the lowest bits of its byte.
#[cube]
pub fn words_of(
    words: &[u32],
    block: u32,
    first: u32,
    #[comptime] field: BitField,
    #[comptime] block_bytes: usize,
) -> Array<u32> {
    let lanes = comptime!(field.lanes as u32);
    let per = comptime!(field.per as u32);
    let rest = first % per;
    let chunk = (first / per) * comptime!(field.chunk as u32 / 8);
    let start = block + comptime!(field.first as u32 / 8) + chunk + rest % lanes;
    let shift = (rest / lanes) * comptime!(field.bits);
    let index = (start >> 2) as usize;
    let cuda = is_cuda();
    let wide = comptime!(cuda && is_wide(&field, block_bytes));
    let aligned = comptime!(block_bytes.is_multiple_of(4) && field.first.is_multiple_of(32));
    let even = comptime!(block_bytes.is_multiple_of(2) && field.first.is_multiple_of(16));
    let mut read = Array::<u32>::new(comptime!(RUN / 4));
    if comptime!(wide) {
        let fours = words.as_vectorized().with_vector_size::<Const<4>>();
        let four = fours[index / 4];
        #[unroll]
        for w in 0..comptime!(RUN / 4) {
            read[w] = four.extract(w);
        }
    } else {
        let mut next = words[index];
        #[unroll]
        for w in 0..comptime!(RUN / 4) {
            read[w] = next;
            if comptime!(!aligned || w + 1 < RUN / 4) {
                next = words[comptime!(w + 1) + index];
            }
            if comptime!(!aligned) {
                read[w] = window(read[w], next, start, even);
            }
        }
    }
    if comptime!(per > lanes) {
        #[unroll]
        for w in 0..comptime!(RUN / 4) {
            read[w] >>= shift;
        }
    }
    read
}

/// The four bytes from `start` on, of the word that it lies in and the next; `even`: so is the start.
#[cube]
fn window(word: u32, next: u32, start: u32, #[comptime] even: bool) -> u32 {
    let offset = (start & 3) * 8;
    if comptime!(even) {
        select(offset == 0, word, (word >> 16) | (next << 16))
    } else {
        // In two shifts, because one by 32 is undefined.
        (word >> offset) | ((next << 1) << (31 - offset))
    }
}

/// The sixteen bits of a run of a field that [is a row of bits](is_bit_row).
#[cube]
pub fn bit_row(words: &[u32], block: u32, first: u32, #[comptime] field: BitField) -> u32 {
    let at = first + comptime!(field.first as u32);
    bits_at(words, block, at, 16u32, Reach::Any)
}

/// Flips a run's codes by one field's bits, `up` above their places, group by group.
#[cube]
pub fn gather_groups(
    words: &[u32],
    block: u32,
    first: u32,
    codes: &mut Array<u32>,
    #[comptime] up: u32,
    #[comptime] field: BitField,
    #[comptime] block_bytes: usize,
) {
    let span = comptime!(field.span.min(RUN));
    let to = comptime!(up + field.place);
    if comptime!(is_bit_row(&field)) {
        let all = bit_row(words, block, first, field);
        #[unroll]
        for i in 0..RUN {
            let at = comptime!(i as u32);
            let bit = if comptime!(at > to) {
                all >> comptime!(at - to)
            } else {
                all << comptime!(to - at)
            };
            codes[i] ^= bit & comptime!(1u32 << to);
        }
    } else {
        #[unroll]
        for k in 0..comptime!(RUN / span) {
            let bits = group_of(
                words,
                block,
                first + comptime!((k * span) as u32),
                field,
                block_bytes,
            ) << up;
            #[unroll]
            for i in 0..span {
                codes[comptime!(k * span + i)] ^= bits;
            }
        }
    }
}

/// One field's group of one element, in its place.
#[cube]
pub fn group_of(
    words: &[u32],
    block: u32,
    element: u32,
    #[comptime] field: BitField,
    #[comptime] block_bytes: usize,
) -> u32 {
    let mut bit = comptime!(field.first as u32).runtime();
    if comptime!(field.span < u32::MAX as usize) {
        let lanes = comptime!(field.lanes as u32);
        let per = comptime!(field.per as u32);
        let group = element / comptime!(field.span as u32);
        let rest = group % per;
        bit += (group / per) * comptime!(field.chunk as u32)
            + (rest % lanes) * 8
            + (rest / lanes) * comptime!(field.bits);
    }
    let bits = bits_at(
        words,
        block,
        bit,
        comptime!(field.bits),
        comptime!(Reach::of(&field, block_bytes)),
    );
    bits << comptime!(field.place)
}
