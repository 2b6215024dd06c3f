//! `rusty tokenize`: text to token ids.

use crate::args::Tokenize;
use crate::model;
use anyhow::{Result, bail};
use rusty_loader::text::Tokenizer;
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// Prints ids, one line of them, with their pieces unless JSON is asked for.
pub fn run(options: &Tokenize) -> Result<()> {
    if let (path, None) = (&options.first, &options.second)
        && Path::new(path).exists()
    {
        bail!("no text: {path} is a model's path; give the text behind it");
    }
    let (tokenizer, text) = match (&options.first, &options.second) {
        (model, Some(text)) => (Tokenizer::open(&model::resolve(model)?)?, text),
        (text, None) => (Tokenizer::from_model(&*rusty_engine::demo::model()?)?, text),
    };
    let ids = tokenizer.encode(text, options.special)?;
    let mut out = std::io::stdout().lock();
    if options.json {
        writeln!(out, "{}", json!({ "ids": ids }))?;
        return Ok(());
    }
    for id in ids {
        writeln!(
            out,
            "{id:>8}  {:?}",
            tokenizer.id_to_token(id).unwrap_or_default()
        )?;
    }
    Ok(())
}
