//! Mistral 7B (arXiv 2310.06825): a Llama whose tokens see a sliding window of keys.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::Decoder;
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch {
    id: "mistral",
    build,
};

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder::read(file)?;
    decoder.with_window(file, |_| true)?.build(file)
}
