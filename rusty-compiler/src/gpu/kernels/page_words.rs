//! How keys and values lie in the words of pages.

use crate::KvFormat;

/// Storage of keys and values on a GPU, a token's lanes side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageWords {
    /// A lane in a word.
    F32,
    /// Two lanes in half precision.
    F16,
    /// The upper halves of two lanes.
    Bf16,
}

impl PageWords {
    /// How a format lies; none where GPUs have no kernel for it.
    pub const fn of(format: KvFormat) -> Option<Self> {
        match format {
            KvFormat::F32 => Some(Self::F32),
            KvFormat::F16 => Some(Self::F16),
            KvFormat::Bf16 => Some(Self::Bf16),
            KvFormat::Q8_0 | KvFormat::Q4_0 => None,
        }
    }

    /// Words of one token's keys (or values) of `width` lanes.
    pub const fn token_words(self, width: u32) -> u32 {
        match self {
            Self::F32 => width,
            Self::F16 | Self::Bf16 => width / 2,
        }
    }
}
