//! One model's speed, measured in a process of its own: a fault of a driver ends no more than that.

use anyhow::{Context, Result};
use rusty_backend::Device;
use rusty_compiler::{BindOptions, KvFormat, SlotId};
use rusty_engine::throughput::{Workload, measure};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

/// The variable that tells a process of this program its work.
pub const JOB: &str = "GPU_CHECK_JOB";

/// Rank of the adapters.
const RANK: u32 = 16;

/// What is measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub shape: String,
    pub format: String,
    pub device: String,
    pub prompt: usize,
    pub generate: usize,
    pub depth: usize,
    pub batch: usize,
    pub adapters: usize,
    /// Whether adapters' tables are bytes; else halves.
    pub bytes: bool,
    pub repetitions: usize,
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub test: String,
    pub rate: f64,
    pub bytes_per_token: u64,
    pub dispatches_per_token: u32,
    pub load_s: f64,
}

/// Runs the job that the variable holds, and prints its rows.
pub fn run(job: &str) -> Result<()> {
    let rows = measured(&serde_json::from_str(job)?)?;
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}

fn measured(job: &Job) -> Result<Vec<Row>> {
    let file = rusty_loader::random::model(&job.shape, &job.format)?;
    let start = Instant::now();
    let device = Device::open(&job.device.parse()?, None)?;
    let graph = rusty_graph::arch::build(&*file)?;
    let plan = rusty_compiler::compile(&graph, device.target())?;
    let (rows, vocab, sites) = (plan.row_budget(), plan.vocab, plan.sites.clone());
    let (bytes_per_token, dispatches_per_token) = (plan.bytes_per_token(), plan.dispatches(1));
    let workload = Workload {
        prompt: job.prompt,
        generate: job.generate,
        depth: job.depth,
        batch: job.batch,
        adapters: job.adapters,
    };
    let options = BindOptions {
        pages: workload.pages(),
        kv: KvFormat::F16,
        slots: u32::try_from(job.adapters).context("too many adapters")?,
    };
    let mut executable = rusty_compiler::bind(plan, &*file, &device, &options)?;
    let load_s = start.elapsed().as_secs_f64();
    drop(file);
    let precision = match job.bytes {
        true => rusty_adapters::Precision::Int8,
        false => rusty_adapters::Precision::Stored,
    };
    for slot in 1..=options.slots {
        let name = format!("random-{slot}");
        let adapter = rusty_adapters::random(&name, &sites, RANK, u64::from(slot), precision);
        executable.attach(SlotId(slot), Arc::new(adapter))?;
    }
    let results = measure(&mut *executable, rows, vocab, &workload, job.repetitions)?;
    let row = |result: rusty_engine::throughput::Throughput| Row {
        rate: result.mean(),
        test: result.test,
        bytes_per_token,
        dispatches_per_token,
        load_s,
    };
    Ok(results.into_iter().map(row).collect())
}
