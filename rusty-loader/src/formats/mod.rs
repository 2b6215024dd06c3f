//! Storage formats: plain floats, and block formats described once, as data.
//!
//! A [`Codec`] says where the bits of a block's codes lie and how its scales apply. The host decoder,
//! the oracle, the GPU dequantization (expanded at comptime) and the CPU's scalar path all come from
//! that one description. Element `i` of a block decodes to
//!
//! ```text
//! code(i)  = sum over fields f of bits(f, i) << f.place          (sign-extended where `signed`)
//! value(i) = scale(i) * (code(i) - bias) - min(i)
//! ```
//!
//! Reference for the layouts: `ggml-common.h` and `ggml-quants.c` of ggml, and gguf-py's `quants.py`.

mod codec;
mod decode;
mod encode;
mod table;

pub use codec::{BitField, Codec, ScaleRule};
pub use decode::{MAX_BLOCK_LEN, packed_k};
pub use encode::Encoder;
pub use table::{ALL, Q4_0, Q4_K, Q6_K, Q8_0};

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
