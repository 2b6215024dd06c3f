//! `rusty bench`: prefill and decode speed of a model on a device.

use crate::args::{Bench, Output};
use crate::{adapter, gpu, model, progress, stderr};
use anyhow::{Result, ensure};
use rusty_backend::Device;
use rusty_compiler::{BindOptions, Executable, KvFormat, MemoryUse, Plan, SlotId, Upload};
use rusty_engine::throughput::{Throughput, Workload, measure};
use rusty_graph::Site;
use rusty_loader::ModelFile;
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

/// Measures and prints.
pub fn run(options: &Bench) -> Result<()> {
    ensure!(
        options.prompt > 0 || options.generate > 0,
        "nothing to measure: both -p and -n are 0"
    );
    ensure!(
        options.repetitions > 0 && options.batch > 0,
        "repetitions and batch must be at least 1"
    );
    let (file, name) = open(options)?;
    let start = Instant::now();
    let file = model::quantized(file, options.quantize)?;
    let device = gpu::open(&options.device, options.threads, &options.gpu)?;
    let plan = plan(options, &*file, &device)?;
    let format = dominant_format(&plan);
    let together = plan.row_budget().min(plan.output_budget());
    ensure!(
        options.batch <= together,
        "--batch {}: a step runs up to {together} sequences",
        options.batch
    );
    let (rows, vocab, sites) = (plan.row_budget(), plan.vocab, plan.sites.clone());
    let workload = Workload {
        prompt: options.prompt,
        generate: options.generate,
        depth: options.depth,
        batch: options.batch,
        adapters: options.adapters.count,
    };
    let bind = BindOptions {
        pages: workload.pages(),
        kv: options.kv.into(),
        slots: options.adapters.count as u32,
    };
    let mut executable = bound(options, plan, &*file, &device, &bind)?;
    let load_s = start.elapsed().as_secs_f64();
    // Random weights lie in memory of their own until here.
    drop(file);
    attach(options, &sites, &mut *executable)?;
    let times = options.repetitions;
    let results = measure(&mut *executable, rows, vocab, &workload, times)?;
    let report = Report {
        model: name,
        format,
        device: device.to_string(),
        load_s,
        kv: options.kv.into(),
        memory: executable.memory(),
        upload: executable.uploaded(),
        results,
    };
    match options.output {
        Output::Json => report.json(),
        Output::Text => report.table(),
    }
}

/// The model's plan for the device.
fn plan(options: &Bench, file: &dyn ModelFile, device: &Device) -> Result<Plan> {
    let graph = rusty_graph::arch::build(file)?;
    let single = options.gpu.single_precision;
    Ok(rusty_engine::bound::plan(&graph, device, single)?)
}

/// The plan on the device, its kernels chosen by measuring unless that is not wanted.
fn bound(
    options: &Bench,
    plan: Plan,
    file: &dyn ModelFile,
    device: &Device,
    bind: &BindOptions,
) -> Result<Box<dyn Executable>> {
    let tuning = progress::Tuning::default();
    let show: &dyn Fn(u64, u64) = &|done, total| tuning.show(done, total);
    let measuring = (!options.gpu.no_autotune).then_some(show);
    let bound = rusty_engine::bound::bind(plan, file, device, bind, measuring);
    Ok(bound?)
}

/// Attaches as many random adapters as are asked for.
fn attach(options: &Bench, sites: &[Site], executable: &mut dyn Executable) -> Result<()> {
    let (rank, precision) = (options.adapters.rank, options.adapter_precision.into());
    for i in 1..=options.adapters.count {
        let adapter = adapter::random(i, rank, sites, precision);
        executable.attach(SlotId(i as u32), Arc::new(adapter))?;
    }
    Ok(())
}

fn open(options: &Bench) -> Result<(Box<dyn ModelFile>, String)> {
    let file = model::open_or_make(options.model.as_deref(), &options.random, &options.rope)?;
    let name = options.random.random.clone();
    let name = name.unwrap_or_else(|| file.label().to_string());
    Ok((file, name))
}

/// The format that holds most of the weights' bytes.
fn dominant_format(plan: &Plan) -> String {
    let mut bytes: Vec<(&str, u64)> = Vec::new();
    for weight in &plan.weights {
        let name = weight.format.name();
        match bytes.iter_mut().find(|(n, _)| *n == name) {
            Some((_, total)) => *total += weight.bytes(),
            None => bytes.push((name, weight.bytes())),
        }
    }
    bytes
        .iter()
        .max_by_key(|(_, total)| *total)
        .map_or("none", |(name, _)| name)
        .to_string()
}

/// What was measured, on what.
struct Report {
    model: String,
    format: String,
    device: String,
    /// Seconds from the opened file to an executable: quantizing, compiling, choosing kernels where they are not known. A mapped
    /// file's weights reach a GPU beside the first steps.
    load_s: f64,
    kv: KvFormat,
    memory: MemoryUse,
    /// How weights came to a GPU.
    upload: Upload,
    results: Vec<Throughput>,
}

impl Report {
    fn json(&self) -> Result<()> {
        let rows: Vec<_> = self
            .results
            .iter()
            .map(|r| {
                json!({
                    "test": r.test,
                    "avg_ts": r.mean(),
                    "stddev_ts": r.stddev(),
                    "samples_ts": r.samples,
                    "device": self.device,
                    "model": self.model,
                    "format": self.format,
                    "kv": self.kv.name(),
                    "load_s": self.load_s,
                    "upload_gb_s": self.upload.gb_per_s(),
                    "weight_bytes": self.memory.mapped_weights + self.memory.resident_weights,
                    "arena_bytes": self.memory.arena,
                    "adapter_bytes": self.memory.adapters,
                    "adapter_room_bytes": self.memory.adapter_room,
                })
            })
            .collect();
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        Ok(())
    }

    fn table(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{:<28} {:<8} {:<24} {:<14} {:>18}",
            "model", "format", "device", "test", "tok/s"
        )?;
        for r in &self.results {
            let speed = format!("{:.2} ± {:.2}", r.mean(), r.stddev());
            let (model, format, device) = (&self.model, &self.format, &self.device);
            writeln!(
                out,
                "{model:<28} {format:<8} {device:<24} {:<14} {speed:>18}",
                r.test
            )?;
        }
        let weights = self.memory.mapped_weights + self.memory.resident_weights;
        stderr::line(format_args!(
            "loaded in {:.2} s; weights {} MiB, activations {} MiB, keys and values {} MiB in {}",
            self.load_s,
            weights >> 20,
            self.memory.arena >> 20,
            self.memory.kv >> 20,
            self.kv.name()
        ));
        if let Some(rate) = self.upload.gb_per_s() {
            let uploaded = self.upload.bytes >> 20;
            stderr::line(format_args!(
                "uploaded {uploaded} MiB of weights at {rate:.1} GB/s"
            ));
        }
        Ok(())
    }
}
