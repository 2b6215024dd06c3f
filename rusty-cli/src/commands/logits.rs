//! `rusty logits`: the logits of every position of a token list, as a safetensors file.

use crate::adapter::split;
use crate::args::Logits;
use crate::{engine, model};
use anyhow::{Context, Result, ensure};
use rusty_loader::output_file::{self, is_taken, write_whole};
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

/// Computes and writes `logits`, F32 `[T, vocab]`.
pub fn run(options: &Logits) -> Result<()> {
    ensure!(
        options.force || !is_taken(&options.out),
        "{} exists; --force overwrites it",
        options.out.display()
    );
    output_file::check(&options.out)?;
    if is_taken(&options.out) {
        let model = options.model.as_deref().map(model::resolve).transpose()?;
        let adapters = options.load.adapters.iter();
        let adapters = adapters.map(|argument| Ok(Path::new(split(argument)?.0)));
        let adapters = adapters.collect::<Result<Vec<_>>>()?;
        model::check_kept(adapters.into_iter().chain(model.as_deref()), &options.out)?;
    }
    let (engine, adapters) = engine::load(options.model.as_deref(), &options.load, None)?;
    let logits = engine.logits(&options.tokens, adapters)?;
    let bytes: Vec<u8> = logits.iter().flat_map(|l| l.to_le_bytes()).collect();
    let shape = vec![options.tokens.len(), engine.vocab() as usize];
    let view = TensorView::new(Dtype::F32, shape, &bytes)?;
    write_whole(&options.out, |part| {
        safetensors::serialize_to_file([("logits", view)], None, part)
            .with_context(|| format!("{}", options.out.display()))
    })
}
