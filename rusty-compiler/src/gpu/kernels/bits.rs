//! Bit-level reads from word buffers: bytes at any address, half floats without a half type.
//!
//! Weights and caches are bound as 32-bit words because WGSL has no smaller storage types and blocks of 18,
//! 34 or 210 bytes start anywhere.

use super::env::{is_cuda, is_wgsl_with_halves};
use cubecl::prelude::*;
use rusty_loader::formats::BitField;

/// The value of IEEE half-precision bits, without any above them; exact, subnormals included where the device keeps them.
#[cube]
pub fn f16_value(bits: u32) -> f32 {
    let cuda = is_cuda();
    let wgsl = is_wgsl_with_halves();
    if comptime!(cuda) {
        // Assembly takes values; a variable would be handed over by its address.
        let bits = u32::reinterpret(f32::reinterpret(bits));
        let out: f32;
        gpu_asm!(
            "{{ .reg .b16 h; cvt.u16.u32 h, {b}; cvt.f32.f16 {d}, h; }}",
            b = in(_) bits, d = out(_) out,
            options(pure, nomem),
        );
        out
    } else if comptime!(wgsl) {
        // Stands for the conversion: `wgsl_text.rs` puts that in its place. No half is known when a kernel is compiled, so none is
        // folded.
        f32::reinterpret(bits.reverse_bits())
    } else {
        let magnitude = f32::reinterpret((bits & 0x7fff) << 13) * 5.192_297e33_f32;
        f32::reinterpret(u32::reinterpret(magnitude) | ((bits & 0x8000) << 16))
    }
}

/// The value of an 8-bit float E4M3: half-precision numbers of the same bits are a 256th as large.
#[cube]
pub fn e4m3_value(code: u32) -> f32 {
    f16_value(((code & 0x80) << 8) | ((code & 0x7f) << 7)) * 256.0
}

/// Half-precision bits of a value, rounded to nearest even; values beyond the range become infinite.
#[cube]
pub fn f16_bits(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: rebias the exponent by -112 and round the 13 dropped bits to nearest even.
    let rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    let normal = (rounded - 0x3800_0000) >> 13;
    // Subnormal results: adding 0.5 aligns the mantissa so that the hardware rounds it.
    let aligned = f32::reinterpret(magnitude) + 0.5f32;
    let subnormal = u32::reinterpret(aligned) - 0x3f00_0000;
    let small = magnitude < 0x3880_0000;
    let huge = magnitude >= 0x477f_f000;
    let finite = select(small, subnormal, normal);
    sign | select(huge, 0x7c00u32, finite)
}

/// Two halves in one word, the first in the low bits.
#[cube]
pub fn f16_pair(low: f32, high: f32) -> u32 {
    f16_bits(low) | (f16_bits(high) << 16)
}

/// The upper halves of two values in one word, rounded to nearest even, the first in the low bits.
#[cube]
pub fn bf16_pair(low: f32, high: f32) -> u32 {
    bf16_bits(low) | (bf16_bits(high) << 16)
}

/// The upper half of a value, rounded to nearest even; what is no number stays none.
#[cube]
fn bf16_bits(value: f32) -> u32 {
    let bits = u32::reinterpret(value);
    let rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    select((bits & 0x7fff_ffff) > 0x7f80_0000, 0x7fc0u32, rounded)
}

/// The byte at a byte address.
#[cube]
pub fn byte_at(words: &[u32], address: u32) -> u32 {
    (words[(address >> 2) as usize] >> ((address & 3) * 8)) & 0xff
}

/// The 16-bit word at an even byte address.
#[cube]
pub fn half_at(words: &[u32], address: u32) -> u32 {
    (words[(address >> 2) as usize] >> ((address & 2) * 8)) & 0xffff
}

/// What is known of where a group of bits lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Blocks begin with a word, and the group is inside of one.
    Word,
    /// The group is inside of a word.
    Inside,
    /// It may reach into the next word.
    Any,
}

impl Reach {
    /// That of a field's groups in blocks of `block_bytes`.
    pub fn of(field: &BitField, block_bytes: usize) -> Self {
        let bits = field.bits as usize;
        let whole = |n: usize| n.is_multiple_of(bits);
        if !16usize.is_multiple_of(bits) || !whole(field.first) || !whole(field.chunk) {
            return Reach::Any;
        }
        // Groups side by side in bytes are no wider than those.
        let narrow = bits <= 8 || field.span == usize::MAX;
        match () {
            () if narrow && block_bytes.is_multiple_of(4) => Reach::Word,
            () if narrow && whole(8 * block_bytes) => Reach::Inside,
            () => Reach::Any,
        }
    }
}

/// At most 16 bits from bit `bit` on, counted from the byte address `base`.
#[cube]
pub fn bits_at(
    words: &[u32],
    base: u32,
    bit: u32,
    #[comptime] bits: u32,
    #[comptime] reach: Reach,
) -> u32 {
    let mask = comptime!((1u32 << bits) - 1);
    let address = base + (bit >> 3);
    let shift = (address & 3) * 8 + (bit & 7);
    match reach {
        Reach::Word => (words[((base >> 2) + (bit >> 5)) as usize] >> (bit & 31)) & mask,
        Reach::Inside => (words[(address >> 2) as usize] >> shift) & mask,
        Reach::Any => {
            let index = (address >> 2) as usize;
            // In two shifts, because one by 32 is undefined.
            let window = (words[index] >> shift) | ((words[index + 1] << 1) << (31 - shift));
            window & mask
        }
    }
}
