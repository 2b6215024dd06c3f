//! `rusty logits`: the logits of every position of a token list, as a safetensors file.

use crate::args::Logits;
use crate::engine;
use anyhow::{Context, Result};
use safetensors::tensor::{Dtype, TensorView};

/// Computes and writes `logits`, F32 `[T, vocab]`.
pub fn run(options: &Logits) -> Result<()> {
    let (engine, adapters) = engine::load(options.model.as_deref(), &options.load)?;
    let logits = engine.logits(&options.tokens, adapters)?;
    let bytes: Vec<u8> = logits.iter().flat_map(|l| l.to_le_bytes()).collect();
    let shape = vec![options.tokens.len(), engine.vocab() as usize];
    let view = TensorView::new(Dtype::F32, shape, &bytes)?;
    safetensors::serialize_to_file([("logits", view)], None, &options.out)
        .with_context(|| format!("{}", options.out.display()))
}
