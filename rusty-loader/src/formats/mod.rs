//! Storage formats: plain floats, and block formats described once, as data.
//!
//! A [`Codec`] says where the bits of a block's codes lie, what they stand for and how scales apply. The host decoder,
//! the oracle, the GPU dequantization (expanded at comptime) and the packing for the CPU's kernels all come from
//! that one description. Element `i` of a block, in group `g`, decodes to
//!
//! ```text
//! value(i) = scale(g) * level(code(i)) - min(g)
//! ```
//!
//! Reference for the layouts: `ggml-common.h` and `ggml-quants.c` of ggml, and gguf-py's `quants.py`.

mod checkpoints;
mod codec;
mod decode;
mod encode;
mod fp4;
mod gather;
mod grids;
mod i_quants;
mod k_quants;
mod search;
mod simple;
mod ternary;

pub use checkpoints::{
    FP8_G32, FP8_G64, FP8_G128, INT4_G32, INT4_G64, INT4_G128, NF4_G64, NORMAL_FLOATS,
};
pub use codec::{BitField, Codec, Grid, Levels, Part, Scale, Steps, TritRun, Unit};
pub use decode::{MAX_BLOCK_LEN, e4m3};
pub use encode::Encoder;
pub use fp4::{MXFP4, NVFP4};
pub use i_quants::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_XS};
pub use k_quants::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
pub use simple::{IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use ternary::{TQ1_0, TQ2_0};

/// Block formats of quantized checkpoints.
pub static OF_CHECKPOINTS: &[&Codec] = &[
    &INT4_G32, &INT4_G64, &INT4_G128, &FP8_G32, &FP8_G64, &FP8_G128, &NF4_G64,
];

/// Every block format of GGUF.
pub static ALL: &[&Codec] = &[
    &Q4_0, &Q4_1, &Q5_0, &Q5_1, &Q8_0, &Q2_K, &Q3_K, &Q4_K, &Q5_K, &Q6_K, &IQ1_S, &IQ1_M, &IQ2_XXS,
    &IQ2_XS, &IQ2_S, &IQ3_XXS, &IQ3_S, &IQ4_NL, &IQ4_XS, &TQ1_0, &TQ2_0, &MXFP4, &NVFP4,
];

/// How stored bytes encode values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of codes with scales.
    Blocks(&'static Codec),
}

impl Format {
    /// Elements per block (1 for plain floats).
    pub const fn block_len(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::Bf16 => 1,
            Format::Blocks(c) => c.block_len,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
            Format::Blocks(c) => c.block_bytes,
        }
    }

    /// Bytes of a row of `len` elements; `len` must be a multiple of [`Format::block_len`].
    pub const fn row_bytes(self, len: usize) -> usize {
        len / self.block_len() * self.block_bytes()
    }

    /// The name users see and type: `f32`, `bf16`, `q4_0`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::Bf16 => "bf16",
            Format::Blocks(c) => c.name,
        }
    }
}
