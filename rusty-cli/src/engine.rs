//! From command-line options to a loaded engine with its adapter attached, and to a request.

use crate::args::{Load, Sampling};
use crate::{adapter, model};
use anyhow::{Context, Result};
use rusty_engine::{AdapterSet, Engine, EngineOptions, Prompt, Request};
use rusty_loader::ModelFile;
use std::path::Path;
use std::sync::Arc;

/// Looks for machine code in a package from now on.
fn use_package(folder: &Path) -> Result<()> {
    let manifest = std::fs::read(folder.join("manifest.json"));
    let manifest = manifest.with_context(|| {
        let folder = folder.display();
        format!("--kernels {folder}: no manifest.json there; `rusty compile` writes one")
    })?;
    let manifest: serde_json::Value = serde_json::from_slice(&manifest)
        .with_context(|| format!("{}", folder.join("manifest.json").display()))?;
    if manifest["kernels"]
        .as_array()
        .is_none_or(|k| k.iter().all(|k| k["code"].is_null()))
    {
        tracing::warn!(
            "{} holds no machine code: it changes nothing",
            folder.display()
        );
    }
    rusty_backend::cuda::nvrtc::use_package(folder);
    Ok(())
}

/// Loads the model, attaches the adapters, and runs the test inference where asked.
pub fn load(model: Option<&str>, options: &Load) -> Result<(Engine, AdapterSet)> {
    if let Some(folder) = &options.kernels {
        use_package(folder)?;
    }
    let open = || model::open_scaled(model, &options.rope);
    let file = model::quantized(open()?, options.quantize)?;
    let engine = Engine::load(
        &*file,
        &EngineOptions {
            device: options.device.parse().context("--device")?,
            threads: options.threads,
            matrix_units: !options.no_matrix_units,
            kv: options.kv.into(),
            context: options.ctx,
            adapter_cache: adapter::cache(options.adapter_cache.as_deref()),
            ..EngineOptions::default()
        },
    )?;
    tracing::info!(
        "{} on {} in {:.2} s",
        engine.label(),
        engine.device(),
        engine.load_s()
    );
    if options.check {
        engine.check()?;
    }
    // Adapters are prepared from the stored weights; blocks made at load are needed no longer.
    let base: Arc<dyn ModelFile> = match options.quantize {
        None => Arc::from(file),
        Some(_) => Arc::from(open()?),
    };
    engine.keep_base(base);
    let precision = options.adapter_precision.into();
    let adapters = adapter::attach(&engine, &options.adapters, precision)?;
    Ok((engine, adapters))
}

/// A request as the options state it.
pub fn request(prompt: Prompt, sampling: &Sampling) -> Request {
    Request {
        sampling: rusty_engine::Sampling {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            seed: sampling.seed,
        },
        max_tokens: sampling.max_tokens,
        stop: sampling.stop.clone(),
        ..Request::new(prompt)
    }
}
