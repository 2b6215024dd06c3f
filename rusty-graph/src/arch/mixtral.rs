//! Mixtral (arXiv 2401.04088): a Mistral whose layers have experts, of which each token takes a few. Layers whose files have
//! no router have one feed-forward.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::Decoder;
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch {
    id: "mixtral",
    build,
};

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder::read(file)?.with_experts(file, true)?;
    decoder.with_window(file, |_| true)?.build(file)
}
