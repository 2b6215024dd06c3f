//! Mistral 7B (arXiv 2310.06825): a Llama whose tokens see a sliding window of keys.

use rusty_loader::ModelFile;
use rusty_loader::meta::keys;

use super::dense::DenseDecoder;
use super::{Arch, Checkpoint};
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch {
    id: "mistral",
    build,
};

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let model = Checkpoint::new(file);
    let window = match model.meta(keys::SLIDING_WINDOW) {
        None => None,
        Some(_) => Some(model.count(keys::SLIDING_WINDOW)?),
    };
    let decoder = DenseDecoder {
        window,
        ..DenseDecoder::read(file)?
    };
    decoder.build(file)
}
