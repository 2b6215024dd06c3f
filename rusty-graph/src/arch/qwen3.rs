//! Qwen3 and Qwen3 MoE (arXiv 2505.09388): a Llama that norms each head's queries and keys before rotating them, dense or
//! with experts, of which each token takes a few. Layers whose files have no router have one feed-forward.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::{Decoder, QkNorm};
use crate::{Graph, Result};

pub(super) const DENSE: Arch = Arch {
    id: "qwen3",
    build: dense,
};

pub(super) const MOE: Arch = Arch {
    id: "qwen3moe",
    build: moe,
};

fn dense(file: &dyn ModelFile) -> Result<Graph> {
    common(file)?.refuse_window(file)?.build(file)
}

fn moe(file: &dyn ModelFile) -> Result<Graph> {
    // GGUFs do not say; transformers' default is not to, but every published checkpoint does.
    let decoder = common(file)?.with_experts(file, true)?;
    decoder.refuse_window(file)?.build(file)
}

/// What both share.
fn common(file: &dyn ModelFile) -> Result<Decoder> {
    Ok(Decoder {
        qk_norm: QkNorm::Heads,
        ..Decoder::read(file)?
    })
}
