//! Architectures: each turns a model file's metadata and tensors into a [`Graph`].
//!
//! One architecture is one small file and one line of [`REGISTRY`]. What several share honestly, such as the
//! decoder of the Llama family, is a description they fill in ([`decoder`]).

mod checkpoint;
pub mod decoder;
mod deepseek;
mod gemma;
mod granite;
mod llama;
mod mistral;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;

pub use checkpoint::Checkpoint;

use rusty_loader::ModelFile;

use crate::{Error, Graph, Result};

/// An architecture.
#[derive(Clone, Copy, Debug)]
pub struct Arch {
    /// Canonical id, as [`ModelFile::arch`] states it.
    pub id: &'static str,
    /// Builds the graph of a model of this architecture.
    pub build: fn(&dyn ModelFile) -> Result<Graph>,
}

/// Every architecture.
pub const REGISTRY: &[Arch] = &[
    llama::ARCH,
    mistral::ARCH,
    qwen2::ARCH,
    qwen3::DENSE,
    phi3::ARCH,
    gemma::GEMMA2,
    gemma::GEMMA3,
    mixtral::ARCH,
    qwen3::MOE,
    deepseek::V2,
    deepseek::V3,
    granite::ARCH,
    olmo2::ARCH,
];

/// Builds the graph of a model file.
///
/// # Errors
/// [`Error::UnknownArch`] where no architecture has the file's id, [`Error::Meta`] and [`Error::Tensor`]
/// where the file lacks what the architecture needs.
pub fn build(file: &dyn ModelFile) -> Result<Graph> {
    let Some(arch) = REGISTRY.iter().find(|a| a.id == file.arch()) else {
        let known: Vec<_> = REGISTRY.iter().map(|a| a.id).collect();
        return Err(Error::UnknownArch {
            model: file.label().into(),
            arch: file.arch().into(),
            supported: known.join(", "),
        });
    };
    (arch.build)(file)
}
