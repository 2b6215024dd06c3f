//! Adapter files and their way into the compiler's slot tables.
//!
//! [`load`] reads a PEFT folder or a llama.cpp LoRA file against a [`Base`] model; [`mix()`] makes several adapters
//! one; [`random()`] makes adapters for measuring speed;
//! [`export()`] and [`packed::pack`] write them, [`merge::merge`] makes a full model with them, [`compress()`] makes them
//! smaller, and a [`Cache`] keeps them as they were prepared. Every kind of adapter becomes the one form that fused
//! kernels know, `gain_out (W (gain_in x)) + B (scale (A x)) + bias` (see `rusty_compiler::slots`), so that kernels
//! know nothing of kinds.

mod base_model;
mod cache;
mod compact;
mod compress;
mod config;
mod draft;
mod dtype;
pub mod error;
mod export;
mod factors;
mod gguf;
mod kinds;
pub mod merge;
mod mix;
mod module_patterns;
mod modules;
mod owned_tensor;
pub mod packed;
mod peft;
mod precision;
mod random;
mod shared;
mod stated;
mod tensors;

pub use base_model::Base;
pub use cache::{Cache, Stamp};
pub use compress::{Pruning, compress};
pub use error::{Error, Result};
pub use export::{Container, export};
pub use mix::{Mix, mix};
pub use peft::from_bytes;
pub use precision::Precision;
pub use random::{random, random_with_head};
pub use stated::Stated;

use rusty_compiler::SlotData;
use std::path::Path;

/// Bytes of an adapter's tensors on disk, about as many as it takes in memory; none where there is no such file.
pub fn stored_bytes(path: &Path) -> Option<u64> {
    let file = match path.is_dir() {
        true => &path.join("adapter_model.safetensors"),
        false => path,
    };
    Some(std::fs::metadata(file).ok()?.len())
}

/// Reads an adapter for a model: a PEFT folder, a GGUF file as llama.cpp's converter writes, or a [`packed`] file.
///
/// # Errors
/// A file is missing or malformed, the kind is not supported, or a tensor fits no place of the model (both shapes are
/// named).
pub fn load(path: &Path, base: &Base<'_>, precision: Precision) -> Result<SlotData> {
    if packed::is_packed(path) {
        return Ok(precision.applied(packed::open(path, base)?));
    }
    match path.is_file() {
        true => gguf::load(path, base, precision),
        false => peft::load(path, base, precision),
    }
}
