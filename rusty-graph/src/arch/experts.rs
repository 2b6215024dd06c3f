//! Mixtral (arXiv 2401.04088) and Qwen3 MoE (arXiv 2505.09388): decoders whose layers have experts, of which each token
//! takes a few. Layers whose files have no router have one feed-forward.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::{Decoder, QkNorm};
use crate::{Graph, Result};

pub(super) const MIXTRAL: Arch = Arch {
    id: "mixtral",
    build: mixtral,
};

pub(super) const QWEN3_MOE: Arch = Arch {
    id: "qwen3moe",
    build: qwen3_moe,
};

fn mixtral(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder::read(file)?.with_experts(file, true)?;
    decoder.with_window(file, |_| true)?.build(file)
}

fn qwen3_moe(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder {
        qk_norm: QkNorm::Heads,
        ..Decoder::read(file)?
    };
    // GGUFs do not say; transformers' default is not to, but every published checkpoint does.
    decoder
        .with_experts(file, true)?
        .refuse_window(file)?
        .build(file)
}
