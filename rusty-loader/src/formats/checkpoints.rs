//! Blocks that weights of quantized checkpoints become when they are opened: what AWQ, GPTQ, FP8 and bitsandbytes store
//! apart (codes, scales, zeros) side by side, nothing rounded.

use super::codec::{BitField, Codec, Levels, Part, Scale, Steps};

const D: &[BitField] = &[BitField::once(0, 16, 0)];
const ZERO: &[BitField] = &[BitField::once(16, 4, 0)];
const NIBBLES: &[Part] = &[Part::Bits(BitField::lanes(4, 4, 16, 0))];
const BYTES: &[Part] = &[Part::Bits(BitField::lanes(4, 8, 32, 0))];

/// An f16 scale, the code of zero, spare bits up to a whole word, 4-bit codes: AWQ (arXiv 2306.00978) and GPTQ (arXiv
/// 2210.17323).
const fn int4(name: &'static str, len: usize) -> Codec {
    Codec {
        name,
        ggml_type: None,
        block_len: len,
        block_bytes: 4 + len / 2,
        codes: NIBBLES,
        levels: Levels::Offset(0),
        group: 32,
        scale: Scale::f16(D),
        min: Some(Scale::f16(D).times(Steps::of(ZERO))),
    }
}

/// An f32 scale and 8-bit floats (E4M3, arXiv 2209.05433).
const fn fp8(name: &'static str, len: usize) -> Codec {
    Codec {
        name,
        ggml_type: None,
        block_len: len,
        block_bytes: 4 + len,
        codes: BYTES,
        levels: Levels::E4M3,
        group: len,
        scale: Scale::f32_first(),
        min: None,
    }
}

/// Groups of 32 inputs.
pub static INT4_G32: Codec = int4("int4_g32", 32);
/// Groups of 64 inputs.
pub static INT4_G64: Codec = int4("int4_g64", 64);
/// Groups of 128 inputs.
pub static INT4_G128: Codec = int4("int4_g128", 128);

/// A scale per 32 inputs.
pub static FP8_G32: Codec = fp8("fp8_g32", 32);
/// A scale per 64 inputs.
pub static FP8_G64: Codec = fp8("fp8_g64", 64);
/// A scale per 128 inputs.
pub static FP8_G128: Codec = fp8("fp8_g128", 128);

/// Quantiles of the normal distribution (arXiv 2305.14314, appendix E).
pub static NORMAL_FLOATS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// An f32 scale and 4-bit codes of normal quantiles (bitsandbytes' NF4).
pub static NF4_G64: Codec = Codec {
    name: "nf4_g64",
    ggml_type: None,
    block_len: 64,
    block_bytes: 36,
    codes: NIBBLES,
    levels: Levels::Floats(&NORMAL_FLOATS),
    group: 64,
    scale: Scale::f32_first(),
    min: None,
};
