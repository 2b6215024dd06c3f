//! Random blocks by a rule that a device follows as well as the host: what it makes of a tensor is the same bytes.
//!
//! A byte is random bits of which some are kept, and others that are set: `random & kept[at] | set[variant][at]`, `at` being its place
//! in its block. Random words are a hash of the tensor's seed and the word's number, and so are the blocks' variants; so any
//! part can be made by itself, in any order, and with nothing but 32-bit integers.

use std::thread;

use super::{DEVIATION, Spread};
use crate::{Codec, Format};

/// Variants of a block, which differ in the units of their scales; a power of two.
const VARIANTS: u32 = 64;
/// Bytes that are taken for a block of floats, whose elements are all alike: a whole number of any of them.
const FLOATS: usize = 64;
/// Bytes that are worth a thread.
const SHARE: usize = 1 << 20;

/// The rule that the bytes of a random matrix are made by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    seed: [u32; 2],
    block_bytes: usize,
    variants: u32,
    table: Vec<u8>,
}

impl Pattern {
    /// That of the matrix of a name in a format.
    pub fn new(name: &str, format: Format) -> Self {
        let (block_bytes, variants, table) = match format {
            Format::Blocks(codec) => (codec.block_bytes, VARIANTS, block_table(codec)),
            float => (FLOATS, 1, float_table(float)),
        };
        Self {
            seed: seed(name),
            block_bytes,
            variants,
            table,
        }
    }

    /// What tells tensors apart.
    pub fn seed(&self) -> [u32; 2] {
        self.seed
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// How many variants of a block there are: a power of two.
    pub fn variants(&self) -> u32 {
        self.variants
    }

    /// The bits of a block that are kept, then those that are set, for each variant: each as long as a block.
    pub fn table(&self) -> &[u8] {
        &self.table
    }

    /// Makes the tensor's bytes from its first on, on all cores.
    pub fn fill(&self, bytes: &mut [u8]) {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        // Whole blocks and whole words.
        let share = bytes.len().div_ceil(threads).max(SHARE);
        let share = share.next_multiple_of(self.block_bytes * 4);
        if bytes.len() <= share {
            return self.write(0, bytes);
        }
        // Threads of its own: who waits for bytes in a pool's thread must not be handed other work that waits for them, too.
        thread::scope(|scope| {
            for (i, bytes) in bytes.chunks_mut(share).enumerate() {
                scope.spawn(move || self.write(i * share, bytes));
            }
        });
    }

    /// Makes those from `first` on, wherever that is.
    pub fn fill_part(&self, first: usize, bytes: &mut [u8]) {
        let before = first % (self.block_bytes * 4);
        let mut made = vec![0; before + bytes.len()];
        self.write(first - before, &mut made);
        bytes.copy_from_slice(&made[before..]);
    }

    /// Makes those from `first` on, at which a block and a word begin.
    fn write(&self, first: usize, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<4>();
        let behind = first / 4 + words.len();
        for (word, i) in words.iter_mut().zip(first / 4..) {
            *word = self.word(i).to_le_bytes();
        }
        let last = self.word(behind).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
        let (kept, set) = self.table.split_at(self.block_bytes);
        let blocks = bytes.chunks_mut(self.block_bytes);
        for (block, i) in blocks.zip(first / self.block_bytes..) {
            let set = &set[self.variant(i) * self.block_bytes..];
            for ((byte, kept), set) in block.iter_mut().zip(kept).zip(set) {
                *byte = *byte & kept | set;
            }
        }
    }

    /// A random word by its number, which begins anew after 2^32 of them.
    fn word(&self, number: usize) -> u32 {
        let [inner, outer] = self.seed;
        random(number as u32, inner, outer)
    }

    /// The variant of a block by its number.
    fn variant(&self, number: usize) -> usize {
        let [outer, inner] = self.seed;
        (random(number as u32, inner, outer) & (self.variants - 1)) as usize
    }
}

/// Two numbers that a name is known by.
pub(super) fn seed(name: &str) -> [u32; 2] {
    // FNV-1a.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    [hash as u32, (hash >> 32) as u32]
}

/// A random word of a number and two seeds. Kernels have the same function.
pub(super) fn random(number: u32, inner: u32, outer: u32) -> u32 {
    mixed(mixed(number ^ inner).wrapping_add(outer))
}

/// Every bit of the result hangs on every bit of `x`: lowbias32 of Chris Wellons's hash prospector.
fn mixed(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// The table of a format of blocks: what its spread sets in a block, whatever that held, is set.
fn block_table(codec: &Codec) -> Vec<u8> {
    let spread = Spread::of(codec, DEVIATION);
    let with = |filler: u8, variant: u32| {
        let mut block = vec![filler; codec.block_bytes];
        // A sign, and sizes spread evenly.
        let step = 512 / VARIANTS;
        let random = (variant & 1) | ((variant >> 1) * step * 2);
        spread.set(codec, &mut block, random.into());
        block
    };
    let full = with(0xff, 0);
    let mut table: Vec<u8> = full.iter().zip(with(0, 0)).map(|(a, b)| a ^ b).collect();
    table.extend((0..VARIANTS).flat_map(|variant| with(0, variant)));
    table
}

/// The table of floats that keep sign and mantissa and have the exponent 2^-6: magnitudes from 1/64 to 1/32.
fn float_table(format: Format) -> Vec<u8> {
    let (mantissa, exponent) = match format {
        Format::F16 => (10, 9u16 << 10),
        _ => (7, 121 << 7),
    };
    let kept = 1u16 << 15 | ((1 << mantissa) - 1);
    // Of an f32 the upper half is set; its lower half is all mantissa.
    let element = |upper: u16, lower: u16| match format {
        Format::F32 => [lower.to_le_bytes(), upper.to_le_bytes()].concat(),
        _ => upper.to_le_bytes().to_vec(),
    };
    let block = |element: Vec<u8>| element.into_iter().cycle().take(FLOATS);
    let kept = block(element(kept, 0xffff));
    kept.chain(block(element(exponent, 0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats;

    /// Parts that are made by themselves are those of the whole, and blocks have different units.
    #[test]
    fn parts_are_those_of_the_whole() {
        let all = formats::ALL.iter().copied().map(Format::Blocks);
        for format in all.chain([Format::F32, Format::F16, Format::Bf16]) {
            let pattern = Pattern::new("w", format);
            assert!(pattern.variants().is_power_of_two());
            let size = pattern.block_bytes();
            let blocks = 1 + pattern.variants() as usize;
            assert_eq!(pattern.table().len(), size * blocks);
            let mut whole = vec![0; size * 64 + 2];
            pattern.fill(&mut whole);
            let mut part = vec![0; size * 20];
            pattern.write(size * 12, &mut part);
            assert_eq!(part, whole[size * 12..size * 32], "{}", format.name());
            for first in [0, 3, size * 9 + 2] {
                let mut part = vec![0; size + 5];
                pattern.fill_part(first, &mut part);
                assert_eq!(part, whole[first..][..size + 5], "{}", format.name());
            }
            assert_ne!(whole[..size], whole[size..2 * size], "{}", format.name());
            let mut other = vec![0; whole.len()];
            Pattern::new("v", format).fill(&mut other);
            assert_ne!(whole, other, "{}", format.name());
        }
    }
}
