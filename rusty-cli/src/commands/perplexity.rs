//! `rusty perplexity`: how well a model expects a text, and how far another one is from it.

use crate::args::{Load, Perplexity, Quantize};
use crate::{engine, progress};
use anyhow::{Context, Result};
use rusty_backend::DeviceChoice;
use rusty_compiler::KvFormat;
use rusty_engine::{AdapterSet, Engine, Prompt};
use std::io::Write;

/// Measures and prints.
pub fn run(options: &Perplexity) -> Result<()> {
    let text = std::fs::read_to_string(&options.text)
        .with_context(|| format!("{}", options.text.display()))?;
    let load = Load {
        ctx: options.load.ctx.or(Some(options.chunk)),
        // Where models are compared, the other one is quantized.
        quantize: options.load.quantize.filter(|_| !compares(options)),
        ..options.load.clone()
    };
    let (reference, adapters) = reference(options, &load)?;
    let tokens = reference.session().prompt_tokens(&Prompt::Text(text))?;
    let most = options.chunks.unwrap_or(usize::MAX);
    let bar = progress::bar("chunks", false);
    let report = |done: usize, total: usize| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    };
    let mut out = std::io::stdout().lock();
    let Some((other, other_load)) = other(options, &load)? else {
        let found = reference.perplexity(&tokens, options.chunk, most, &adapters, &report)?;
        bar.finish_and_clear();
        if options.json {
            writeln!(out, "{}", serde_json::to_string(&found)?)?;
        } else {
            let (ppl, error, n) = (found.perplexity, found.error, found.tokens);
            writeln!(out, "perplexity {ppl:.4} ± {error:.4} over {n} tokens")?;
        }
        return Ok(());
    };
    let found = reference.compare(&other, &tokens, options.chunk, most, &adapters, &report)?;
    bar.finish_and_clear();
    if options.json {
        writeln!(out, "{}", serde_json::to_string(&found)?)?;
        return Ok(());
    }
    let first = described(&reference, &load);
    let second = described(&other, &other_load);
    for (name, p) in [(first, found.reference), (second, found.other)] {
        writeln!(
            out,
            "perplexity {:.4} ± {:.4}  {name}",
            p.perplexity, p.error
        )?;
    }
    let d = found.divergence;
    writeln!(
        out,
        "KL divergence: mean {:.6}, largest {:.6} nats; same top token {:.2} % of {} positions",
        d.mean,
        d.max,
        100.0 * d.same_top,
        d.positions
    )?;
    Ok(())
}

/// The model and its adapters. Where no context is asked for, it holds a chunk and the virtual tokens in front.
fn reference(options: &Perplexity, load: &Load) -> Result<(Engine, AdapterSet)> {
    let model = Some(options.model.as_str());
    let loaded = engine::load(model, load, None)?;
    // How many virtual tokens there are is known once adapters are read.
    let adapters = loaded.0.adapters();
    let in_front: usize = adapters.iter().map(|a| a.virtual_tokens as usize).sum();
    if in_front == 0 || options.load.ctx.is_some() {
        return Ok(loaded);
    }
    drop(loaded);
    let longer = Load {
        ctx: Some(options.chunk + in_front),
        ..load.clone()
    };
    engine::load(model, &longer, None)
}

/// A model as it was loaded, in words.
fn described(engine: &Engine, load: &Load) -> String {
    let kv = KvFormat::from(load.kv).name();
    let mut words = format!(
        "{} on {}, {kv} keys and values",
        engine.label(),
        engine.device()
    );
    if let Some(format) = load.quantize {
        words += match format {
            Quantize::Int4 => ", quantized to int4",
            Quantize::Int8 => ", quantized to int8",
        };
    }
    if !load.adapters.is_empty() {
        words += &format!(", with {}", load.adapters.join(", "));
    }
    words
}

fn compares(options: &Perplexity) -> bool {
    options.kl_divergence.is_some() || options.kl_device.is_some() || options.kl_kv.is_some()
}

/// The model that is compared, where one is.
fn other(options: &Perplexity, load: &Load) -> Result<Option<(Engine, Load)>> {
    if !compares(options) {
        return Ok(None);
    }
    if let Some(device) = &options.kl_device {
        device.parse::<DeviceChoice>().context("--kl-device")?;
    }
    let load = Load {
        device: options
            .kl_device
            .clone()
            .unwrap_or_else(|| load.device.clone()),
        kv: options.kl_kv.unwrap_or(load.kv),
        adapters: vec![],
        quantize: options.load.quantize,
        ..load.clone()
    };
    let model = options.kl_divergence.as_deref().unwrap_or(&options.model);
    let (engine, _) = engine::load(Some(model), &load, None)?;
    Ok(Some((engine, load)))
}
