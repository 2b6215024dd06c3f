//! Qwen3, dense (arXiv 2505.09388): a Llama that norms each head's queries and keys before rotating them.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::{Decoder, QkNorm};
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch { id: "qwen3", build };

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder {
        qk_norm: QkNorm::Heads,
        ..Decoder::read(file)?
    };
    decoder.refuse_window(file)?.build(file)
}
