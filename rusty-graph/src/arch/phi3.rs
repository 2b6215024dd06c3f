//! Phi-3 and Phi-4 (arXiv 2404.14219): a Llama that may rotate a part of each head only, with its own way to long
//! contexts. Its files fuse products, which the loader takes apart.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::Decoder;
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch { id: "phi3", build };

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder::read(file)?;
    decoder.with_window(file, |_| true)?.build(file)
}
