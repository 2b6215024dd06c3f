//! DeepSeek-V2 (arXiv 2405.04434) and DeepSeek-V3 (arXiv 2412.19437): latent attention; experts in groups beside some
//! that every token takes, and a feed-forward in the first layers, whose files have no router.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::Decoder;
use crate::{Graph, Result};

pub(super) const V2: Arch = Arch {
    id: "deepseek2",
    build,
};

pub(super) const V3: Arch = Arch {
    id: "deepseek3",
    build,
};

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder::read(file)?.with_latent(file)?;
    decoder.with_experts(file, false)?.build(file)
}
