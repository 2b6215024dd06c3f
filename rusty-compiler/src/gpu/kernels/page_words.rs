//! How keys and values lie in the words of pages.

use crate::KvFormat;

/// Lanes of a block of codes.
pub const BLOCK: u32 = 32;

/// Storage of keys and values on a GPU, a token's lanes side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageWords {
    /// A lane in a word.
    F32,
    /// Two lanes in half precision.
    F16,
    /// The upper halves of two lanes.
    Bf16,
    /// Blocks of [`BLOCK`] rotated lanes: codes of so many bits, then the step between them in single precision.
    Codes(u32),
}

impl PageWords {
    /// How a format lies.
    pub const fn of(format: KvFormat) -> Self {
        match format {
            KvFormat::F32 => Self::F32,
            KvFormat::F16 => Self::F16,
            KvFormat::Bf16 => Self::Bf16,
            KvFormat::Q8_0 => Self::Codes(8),
            KvFormat::Q4_0 => Self::Codes(4),
        }
    }

    /// Words of one token's keys (or values) of `width` lanes, whole blocks where there are blocks.
    pub const fn token_words(self, width: u32) -> u32 {
        match self {
            Self::F32 => width,
            Self::F16 | Self::Bf16 => width / 2,
            Self::Codes(bits) => width / BLOCK * (bits + 1),
        }
    }

    /// The largest number that is stored. What is beyond it becomes it, and so does what is no number (on CPUs and CUDA; WGSL
    /// promises nothing of that): a page that is finite adds nothing where its probability is 0.
    pub const fn largest(self) -> f32 {
        match self {
            Self::F32 => KvFormat::F32.largest(),
            Self::F16 | Self::Codes(_) => KvFormat::F16.largest(),
            Self::Bf16 => KvFormat::Bf16.largest(),
        }
    }

    /// A lane as it may be stored.
    pub fn stored(self, lane: f32) -> f32 {
        lane.min(self.largest()).max(-self.largest())
    }

    /// Whether lanes are stored by blocks, rotated.
    pub const fn is_blocks(self) -> bool {
        matches!(self, Self::Codes(_))
    }
}
