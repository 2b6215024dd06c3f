//! Architectures: one small file each, and a line in the registry.

mod decoder;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use crate::{Error, Graph, Result};
use rusty_loader::ModelFile;

/// A known architecture.
pub struct Arch {
    /// Canonical id, as [`ModelFile::arch`] gives it.
    pub id: &'static str,
    /// States the network of a file.
    pub build: fn(&dyn ModelFile) -> Result<Graph>,
}

/// All architectures.
pub const REGISTRY: &[Arch] = &[llama::ARCH, mistral::ARCH, qwen2::ARCH, qwen3::ARCH];

/// The graph of a model file.
pub fn build(file: &dyn ModelFile) -> Result<Graph> {
    let arch = REGISTRY
        .iter()
        .find(|a| a.id == file.arch())
        .ok_or_else(|| Error::UnknownArch {
            model: file.label().to_string(),
            arch: file.arch().to_string(),
            supported: REGISTRY.iter().map(|a| a.id).collect::<Vec<_>>().join(", "),
        })?;
    (arch.build)(file)
}
