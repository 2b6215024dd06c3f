//! Granite 3 (IBM, 2024): a Llama whose embeddings, halves' results, scores and logits are scaled by stated factors, as in
//! maximal update parametrization (arXiv 2203.03466).

use rusty_loader::ModelFile;
use rusty_loader::meta::keys;

use super::decoder::Decoder;
use super::{Arch, Checkpoint};
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch {
    id: "granite",
    build,
};

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let model = Checkpoint::new(file);
    let plain = Decoder::read(file)?;
    let factor = |key, default: f32| -> Result<f32> {
        match model.float_or(key, f64::from(default))? {
            factor if factor.is_finite() && factor != 0.0 => Ok(factor as f32),
            factor => Err(model.meta_error(key, format!("is {factor}"))),
        }
    };
    let decoder = Decoder {
        embedding_scale: factor(keys::EMBEDDING_SCALE, 1.0)?,
        residual_scale: factor(keys::RESIDUAL_SCALE, 1.0)?,
        logit_divisor: factor(keys::LOGIT_SCALE, 1.0)?,
        query_scale: factor(keys::ATTENTION_SCALE, plain.query_scale)?,
        ..plain
    };
    decoder.refuse_window(file)?.build(file)
}
