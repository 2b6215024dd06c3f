//! Llama 1 to 3.x (arXiv 2302.13971, 2407.21783): RMS norms, rotary grouped-query attention, gated SiLU
//! feed-forward. Linear, dynamic, YaRN and Llama 3 rotary scaling come with the rotary specification.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::Decoder;
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch { id: "llama", build };

fn build(file: &dyn ModelFile) -> Result<Graph> {
    Decoder::read(file)?.build(file)
}
