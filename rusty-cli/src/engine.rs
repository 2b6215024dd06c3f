//! From command-line options to a loaded engine with its adapter attached, and to a request.

use crate::args::{Load, Sampling};
use crate::{adapter, gpu, model, progress};
use anyhow::{Context, Result, bail};
use rusty_engine::{AdapterBudget, AdapterSet, Engine, EngineOptions, Prompt, Request};
use rusty_loader::ModelFile;
use std::sync::Arc;

/// Loads the model, attaches the adapters, and runs the test inference where asked. `experts`: adapters come later.
pub fn load(model: Option<&str>, options: &Load, experts: bool) -> Result<(Engine, AdapterSet)> {
    gpu::use_package(&options.gpu)?;
    let open = || model::open_scaled(model, &options.rope);
    let file = model::quantized(open()?, options.quantize)?;
    let tuning = progress::Tuning::default();
    let default = EngineOptions::default();
    // Kernels for adapters are as many as those without: on a GPU to compile them would take time for nothing.
    let adapter_slots = match options.adapters.is_empty() && !experts {
        true => 0,
        false => default.adapter_slots,
    };
    let engine = Engine::load_observed(
        &*file,
        &EngineOptions {
            device: options.device.parse().context("--device")?,
            threads: options.threads,
            gpu_memory: options.gpu.gpu_memory.map(|b| b.as_u64()),
            single_precision: options.gpu.single_precision,
            autotune: !options.gpu.no_autotune,
            kv: options.kv.into(),
            context: options.ctx,
            adapter_slots,
            adapter_budget: match options.adapter_memory.map(|b| b.as_u64()) {
                None => default.adapter_budget,
                Some(bytes) => AdapterBudget {
                    device: bytes,
                    host: bytes,
                },
            },
            adapter_cache: adapter::cache(options.adapter_cache.as_deref()),
            ..default
        },
        &|done, total| tuning.show(done, total),
    )?;
    drop(tuning);
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
    let mix = options.adapter_mix.into();
    let adapters = adapter::attach(&engine, &options.adapters, precision, mix)?;
    Ok((engine, adapters))
}

/// Refuses settings of sampling that no request may have: before the time of loading a model is spent.
pub fn check(sampling: &Sampling) -> Result<()> {
    match stages(sampling).problem() {
        Some(problem) => bail!(problem),
        None => Ok(()),
    }
}

fn stages(sampling: &Sampling) -> rusty_engine::Sampling {
    rusty_engine::Sampling {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        seed: sampling.seed,
    }
}

/// A request as the options state it.
pub fn request(prompt: Prompt, sampling: &Sampling) -> Request {
    Request {
        sampling: stages(sampling),
        max_tokens: sampling.max_tokens,
        stop: sampling.stop.clone(),
        ..Request::new(prompt)
    }
}
