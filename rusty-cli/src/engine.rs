//! From command-line options to a loaded engine with its adapter attached, and to a request.

use crate::args::{AdapterPrecision, Further, Load, Sampling};
use crate::{adapter, gpu, model, progress};
use anyhow::{Context, Result, bail};
use rusty_engine::{AdapterBudget, AdapterSet, Engine, EngineOptions, Prompt, Request, Stage};
use rusty_loader::ModelFile;
use std::sync::Arc;

/// Loads the model, attaches the adapters, and runs the test inference where asked. `later`: where others come later, the bytes of those
/// that are at work at once, as they are stored.
pub fn load(
    model: Option<&str>,
    options: &Load,
    later: Option<u64>,
) -> Result<(Engine, AdapterSet)> {
    gpu::use_package(&options.gpu)?;
    let open = || model::open_scaled(model, &options.rope);
    let file = model::quantized(open()?, options.quantize)?;
    let tuning = progress::Tuning::default();
    let default = EngineOptions::default();
    // Kernels for adapters are as many as those without: on a GPU to compile them would take time for nothing.
    let adapter_slots = match options.adapters.is_empty() && later.is_none() {
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
            adapter_room: room(options, later.unwrap_or(0))?,
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

/// Bytes of a GPU's memory for the adapters that are named, and `later` ones: a GPU holds a quarter more than is attached, and what it holds
/// for a kernel twice while it grows.
fn room(options: &Load, later: u64) -> Result<u64> {
    let mut stored = later;
    for argument in &options.adapters {
        stored += adapter::stored_bytes(adapter::split(argument)?.0).unwrap_or(0);
    }
    // Of values in 16 bits, as most are stored, and a scale for each block.
    let held = match options.adapter_precision {
        AdapterPrecision::Stored | AdapterPrecision::F16 => stored,
        AdapterPrecision::Int8 => stored * 5 / 8,
        AdapterPrecision::Int4 => stored * 3 / 8,
    };
    let room = match held {
        0 => 0,
        held => held + held / 2 + (1 << 20),
    };
    Ok(options
        .adapter_memory
        .map_or(room, |most| room.min(most.as_u64())))
}

/// Refuses settings of sampling that no request may have: before the time of loading a model is spent.
pub fn check(sampling: &Sampling) -> Result<()> {
    match chosen(sampling, vec![]).problem() {
        Some(problem) => bail!(problem),
        None => Ok(()),
    }
}

/// How tokens are chosen; `breakers` end what counts as a repetition.
fn chosen(sampling: &Sampling, breakers: Vec<u32>) -> rusty_engine::Sampling {
    rusty_engine::Sampling {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        further: further(&sampling.further, breakers),
        seed: sampling.seed,
    }
}

/// DRY's strength, where it has some.
fn dry(options: &Further) -> Option<f32> {
    options.dry_multiplier.filter(|strength| *strength != 0.0)
}

fn further(options: &Further, breakers: Vec<u32>) -> Vec<Stage> {
    let ngram = options.no_repeat_ngram;
    let dry = dry(options).map(|multiplier| Stage::Dry {
        multiplier,
        base: options.dry_base,
        allowed_length: options.dry_allowed_length,
        last_n: options.dry_last_n,
        breakers,
    });
    let stages = [
        ngram.map(|n| Stage::NoRepeatNgram(n as usize)),
        dry,
        options.typical_p.map(Stage::Typical),
        options.epsilon_cutoff.map(Stage::Epsilon),
        options.eta_cutoff.map(Stage::Eta),
        options.top_n_sigma.map(Stage::TopNSigma),
    ];
    stages.into_iter().flatten().collect()
}

/// Tokens that end what counts as a repetition: those in whose text one of llama.cpp's breakers is.
fn breakers(engine: &Engine) -> Vec<u32> {
    let Some(tokenizer) = engine.tokenizer() else {
        return vec![];
    };
    let breaks = |id: &u32| {
        let text = tokenizer.decode(&[*id], true);
        text.is_ok_and(|text| text.contains(['\n', ':', '"', '*']))
    };
    (0..engine.vocab()).filter(breaks).collect()
}

/// A request as the options state it.
pub fn request(prompt: Prompt, sampling: &Sampling, engine: &Engine) -> Request {
    let breakers = match dry(&sampling.further) {
        Some(_) => breakers(engine),
        None => vec![],
    };
    Request {
        sampling: chosen(sampling, breakers),
        max_tokens: sampling.max_tokens,
        stop: sampling.stop.clone(),
        ..Request::new(prompt)
    }
}
