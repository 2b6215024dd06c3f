//! Qwen2 and Qwen2.5 (arXiv 2407.10671): a Llama with biases on queries, keys and values.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::{Biases, Decoder};
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch { id: "qwen2", build };

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder {
        qkv_bias: Biases::Required,
        ..Decoder::read(file)?
    };
    decoder.refuse_window(file)?.build(file)
}
