//! Qwen3, dense (arXiv 2505.09388): a Llama that norms each head's queries and keys before rotating them.

use rusty_loader::ModelFile;

use super::Arch;
use super::dense::DenseDecoder;
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch { id: "qwen3", build };

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = DenseDecoder {
        qk_norm: true,
        ..DenseDecoder::read(file)?
    };
    decoder.refuse_window(file)?.build(file)
}
