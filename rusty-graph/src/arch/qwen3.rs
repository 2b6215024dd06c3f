//! Qwen3 (arXiv 2505.09388): RMS norms over each head of queries and keys.

use super::Arch;
use super::decoder::{Traits, build};

pub(super) const ARCH: Arch = Arch {
    id: "qwen3",
    build: |file| {
        build(
            file,
            Traits {
                head_norms: true,
                ..Traits::default()
            },
        )
    },
};
