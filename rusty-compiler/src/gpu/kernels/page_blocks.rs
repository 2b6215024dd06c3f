//! Blocks of lanes in few bits: the rotation before they are stored (QuaRot, arXiv 2404.00456; see `rotation.rs`), codes and
//! steps.
//!
//! Queries are rotated like keys, and sums of values rotated back; a rotation undoes itself.

use super::env::put;
use super::page_words::BLOCK;
use cubecl::prelude::*;

/// Rotates a block in place.
#[cube]
pub fn rotate(lanes: &mut Array<f32>) {
    #[unroll]
    for level in 0..5u32 {
        let step = comptime!(1usize << level);
        #[unroll]
        for i in 0..16usize {
            let low = comptime!(i / step * 2 * step + i % step);
            let (a, b) = (lanes[low], lanes[comptime!(low + step)]);
            lanes[low] = a + b;
            lanes[comptime!(low + step)] = a - b;
        }
    }
    #[unroll]
    for i in 0..32usize {
        lanes[i] *= 0.176_776_7_f32;
    }
}

/// Rotates blocks in shared memory: in each of `runs` runs, `stride` words apart, the first `blocks`. All units of the cube
/// call it together, with barriers around it.
#[cube]
pub fn rotate_shared<T: CubePrimitive>(
    values: &Shared<[T]>,
    #[comptime] blocks: u32,
    #[comptime] stride: u32,
    #[comptime] runs: u32,
    #[comptime] units: u32,
) {
    let mut task = UNIT_POS;
    while task < comptime!(blocks * runs) {
        let first = task / blocks * stride + task % blocks * BLOCK;
        let mut lanes = Array::<f32>::new(32usize);
        #[unroll]
        for i in 0..32usize {
            lanes[i] = f32::reinterpret(values[(first + i as u32) as usize]);
        }
        rotate(&mut lanes);
        #[unroll]
        for i in 0..32usize {
            put(values, first + i as u32, T::reinterpret(lanes[i]));
        }
        task += units;
    }
}

/// Stores a block at word `at`: codes of `bits` bits, the lowest lane in the lowest bits, around half of their range.
#[cube]
pub fn store_codes(words: &[u32], at: u32, lanes: &Array<f32>, #[comptime] bits: u32) {
    let middle = comptime!((1u32 << (bits - 1)) as f32);
    let mut largest = 0.0f32;
    #[unroll]
    for i in 0..32usize {
        largest = max(largest, lanes[i].abs());
    }
    let step = largest / comptime!(((1u32 << (bits - 1)) - 1) as f32);
    let inverse = select(largest > 0.0, 1.0 / step, 0.0f32);
    let per_word = comptime!(32 / bits);
    #[unroll]
    for w in 0..comptime!(bits as usize) {
        let mut word = 0u32.runtime();
        #[unroll]
        for i in 0..comptime!(per_word as usize) {
            let lane = lanes[comptime!(w * per_word as usize + i)];
            let code = u32::cast_from((lane * inverse).round() + middle);
            word |= code << comptime!(i as u32 * bits);
        }
        put(words, at + w as u32, word);
    }
    put(words, at + bits, u32::reinterpret(step));
}

/// Pair `pair` of the lanes of blocks that start at word `at`.
#[cube]
pub fn pair_of(words: &[u32], at: u32, pair: u32, #[comptime] bits: u32) -> (f32, f32) {
    let middle = comptime!((1u32 << (bits - 1)) as f32);
    let mask = comptime!((1u32 << bits) - 1);
    let block = at + pair / comptime!(BLOCK / 2) * comptime!(bits + 1);
    let inner = pair % comptime!(BLOCK / 2);
    let pairs = comptime!(16 / bits);
    let word = words[(block + inner / pairs) as usize] >> (inner % pairs * comptime!(2 * bits));
    let step = f32::reinterpret(words[(block + bits) as usize]);
    let low = f32::cast_from(word & mask) - middle;
    let high = f32::cast_from((word >> bits) & mask) - middle;
    (low * step, high * step)
}

/// The values of the codes in a word, from `to` on. A code's bits are the upper ones of the mantissa of a float from 1 to 2, which takes
/// no conversion.
#[cube]
pub fn word_values(
    word: u32,
    step: f32,
    out: &mut Array<f32>,
    #[comptime] to: usize,
    #[comptime] bits: u32,
) {
    let up = comptime!(23 - bits);
    let slope = step * comptime!((1u32 << bits) as f32);
    // What half of the range, which stands for 0, becomes.
    let less = slope * 1.5;
    #[unroll]
    for i in 0..comptime!(32 / bits) {
        let place = comptime!(i * bits);
        let moved = if comptime!(place > up) {
            word >> comptime!(place - up)
        } else {
            word << comptime!(up - place)
        };
        let code = moved & comptime!(((1u32 << bits) - 1) << up);
        let number = f32::reinterpret(code | comptime!(1.0f32.to_bits()));
        out[comptime!(to + i as usize)] = slope * number - less;
    }
}
