//! Mistral 7B (arXiv 2310.06825): a Llama whose attention sees a sliding window.

use super::Arch;
use super::decoder::{Traits, build};

pub(super) const ARCH: Arch = Arch {
    id: "mistral",
    build: |file| {
        build(
            file,
            Traits {
                sliding_window: true,
                ..Traits::default()
            },
        )
    },
};
