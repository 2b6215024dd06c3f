//! Random weights as [`Pattern`](rusty_loader::random::Pattern) makes them: the same bytes, word by word.

use super::bits::byte_at;
use super::contract::tile_number;
use super::env::{Buffers, bound, put};
use cubecl::prelude::*;

/// What the kernel is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RandomConfig {
    /// Units of a cube; each makes a word.
    pub units: u32,
}

/// Scalars of a launch.
pub mod scalar {
    /// Word at which the bytes begin.
    pub const AT: usize = 0;
    /// How many bytes there are.
    pub const BYTES: usize = 1;
    /// Bytes of a block.
    pub const BLOCK_BYTES: usize = 2;
    /// Variants of a block, less one.
    pub const VARIANTS: usize = 3;
    /// First of the two seeds.
    pub const SEED: usize = 4;
    /// Number of the first block.
    pub const BLOCK: usize = 6;
    /// Number of the random word in which the first byte lies, and which of its bytes that is.
    pub const WORD: usize = 7;
    pub const BYTE: usize = 8;
    /// How many they are.
    pub const COUNT: usize = 9;
}

/// Cubes: as many as there are words, over two dimensions. `weights` is the pattern's table, `words` becomes the weights; bytes
/// of the last word behind the end are zero.
#[cube(launch_unchecked)]
pub fn random(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: RandomConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let word = tile_number() * config.units + UNIT_POS;
    let first = word * 4;
    let bytes = buffers.args[scalar::BYTES];
    if first < bytes {
        let all = random_bytes(&buffers, word);
        let mut made = 0u32;
        #[unroll]
        for i in 0..4usize {
            let shift = comptime!(8 * i as u32);
            let at = first + comptime!(i as u32);
            let byte = made_byte(&buffers, at, all >> shift);
            made |= select(at < bytes, byte << shift, 0u32);
        }
        put(buffers.words, buffers.args[scalar::AT] + word, made);
    }
}

/// Byte `at` of those of the launch: bits of `random` as its block keeps them, and those that are set.
#[cube]
fn made_byte(buffers: &Buffers<'_>, at: u32, random: u32) -> u32 {
    let size = buffers.args[scalar::BLOCK_BYTES];
    let block = at / size;
    let place = at % size;
    // The seeds the other way round: variants are not the words.
    let variant = random_word(
        buffers.args[scalar::BLOCK] + block,
        buffers.args[comptime!(scalar::SEED + 1)],
        buffers.args[scalar::SEED],
    ) & buffers.args[scalar::VARIANTS];
    let kept = byte_at(buffers.weights, place);
    let set = byte_at(buffers.weights, (variant + 1) * size + place);
    (random & kept) | set
}

/// Four random bytes, the first of which may be any byte of its word.
#[cube]
fn random_bytes(buffers: &Buffers<'_>, word: u32) -> u32 {
    let number = buffers.args[scalar::WORD] + word;
    let inner = buffers.args[scalar::SEED];
    let outer = buffers.args[comptime!(scalar::SEED + 1)];
    let low = random_word(number, inner, outer);
    let high = random_word(number + 1, inner, outer);
    let shift = buffers.args[scalar::BYTE] * 8;
    // In two shifts, because one by 32 is undefined.
    (low >> shift) | ((high << 1) << (31 - shift))
}

/// A random word of a number and two seeds, as the host has it.
#[cube]
fn random_word(number: u32, inner: u32, outer: u32) -> u32 {
    mixed(mixed(number ^ inner) + outer)
}

/// Every bit of the result hangs on every bit of `x`.
#[cube]
fn mixed(x: u32) -> u32 {
    let a = (x ^ (x >> 16)) * 0x7feb_352du32;
    let b = (a ^ (a >> 15)) * 0x846c_a68bu32;
    b ^ (b >> 16)
}
