//! Qwen2 and Qwen2.5 (arXiv 2407.10671): biases on queries, keys and values, which the file carries.

use super::Arch;
use super::decoder::{Traits, build};

pub(super) const ARCH: Arch = Arch {
    id: "qwen2",
    build: |file| build(file, Traits::default()),
};
