//! What touches a device runs in a process of its own: a fault of a driver ends no more than that.

use crate::clock::Said;
use crate::{Check, bandwidth};
use anyhow::{Context, Result};
use rusty_backend::Device;
use rusty_compiler::{BindOptions, KvFormat, SlotId};
use rusty_engine::throughput::{Throughput, Workload, measure};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::sync::Arc;

/// The variable that tells a process of this program its work.
pub const JOB: &str = "GPU_CHECK_JOB";

/// Rank of the adapters.
const RANK: u32 = 16;

/// What such a process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Copies on a device: prints bytes per second.
    Copies(String),
    /// Copies to a device: prints bytes per second.
    Uploads(String),
    /// A model's speed: prints [`Row`]s.
    Model(Model),
}

/// A model's work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Model {
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
    /// Whether choices among kernels are measured first; else they are guesses.
    pub tuned: bool,
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub test: String,
    pub rate: f64,
    /// Bytes that a token moves and its launches, where a lone sequence is decoded from an empty cache.
    pub per_token: Option<(u64, u32)>,
}

/// Runs the job that the variable holds.
pub fn run(job: &str) -> Result<()> {
    match serde_json::from_str(job)? {
        Job::Copies(device) => println!("{}", bandwidth::copies(&device)?),
        Job::Uploads(device) => println!("{}", bandwidth::uploads(&device)?),
        Job::Model(model) => println!("{}", serde_json::to_string(&measured(&model)?)?),
    }
    Ok(())
}

/// Runs a job in a process of its own.
///
/// # Errors
/// The process could not be started.
pub fn start(check: &Check, name: &str, job: &Job, limit: u64) -> Result<Said> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(JOB, serde_json::to_string(job)?);
    check.clock.run(name, &mut command, limit)
}

fn measured(job: &Model) -> Result<Vec<Row>> {
    let file = rusty_loader::random::model(&job.shape, &job.format)?;
    let device = Device::open(&job.device.parse()?, None)?;
    let graph = rusty_graph::arch::build(&*file)?;
    let plan = rusty_compiler::compile(&graph, device.target())?;
    let (rows, vocab, sites) = (plan.row_budget(), plan.vocab, plan.sites.clone());
    let stated = (plan.bytes_per_token(), plan.dispatches(1));
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
    let mut executable = match job.tuned {
        true => rusty_compiler::bind_tuned(plan, &*file, &device, &options, &|_, _| {})?,
        false => rusty_compiler::bind(plan, &*file, &device, &options)?,
    };
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
    let alone = job.depth == 0 && job.batch == 1 && job.adapters == 0;
    let row = |result: Throughput| Row {
        rate: result.samples.iter().copied().fold(0.0, f64::max),
        per_token: (alone && result.test.starts_with("tg")).then_some(stated),
        test: result.test,
    };
    Ok(results.into_iter().map(row).collect())
}
