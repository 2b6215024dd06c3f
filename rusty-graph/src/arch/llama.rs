//! Llama 2 and 3 (arXiv 2302.13971, 2407.21783).

use super::Arch;
use super::decoder::{Traits, build};

pub(super) const ARCH: Arch = Arch {
    id: "llama",
    build: |file| build(file, Traits::default()),
};
