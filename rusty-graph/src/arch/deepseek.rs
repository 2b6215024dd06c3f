//! DeepSeek-V2 (arXiv 2405.04434) and DeepSeek-V3 (arXiv 2412.19437): latent attention; experts in groups beside some
//! that every token takes, and a feed-forward in the first layers, whose files have no router.

use rusty_loader::ModelFile;

use super::decoder::Decoder;
use super::{Arch, Checkpoint};
use crate::{Graph, Result};

pub(super) const V2: Arch = Arch {
    id: "deepseek2",
    build,
};

pub(super) const V3: Arch = Arch {
    id: "deepseek3",
    build,
};

/// Others that carry this name scale queries by their position.
const TEMPERATURE: &str = "attention.temperature_length";

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let model = Checkpoint::new(file);
    if model.int_or(TEMPERATURE, 0)? > 0 {
        let reason = "is stated: queries that are scaled by their position are not supported";
        return Err(model.meta_error(TEMPERATURE, reason.into()));
    }
    let decoder = Decoder::read(file)?.with_latent(file)?;
    decoder.with_experts(file, false)?.build(file)
}
