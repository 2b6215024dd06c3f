//! Rusty's side of a comparison.

use super::{JOB, Job, Reply};
use rusty_backend::{CpuDevice, Device};
use rusty_compiler::{
    BindOptions, Executable, KvFormat, PAGE_TOKENS, RowResult, Sequence, SlotId, Step, Want,
};
use rusty_engine::throughput::{Workload, measure};
use std::process::Command;

/// Runs a job in a process of its own.
pub fn process(job: &Job) -> Reply {
    let own = std::env::current_exe().expect("a path");
    let text = serde_json::to_string(job).expect("JSON");
    let output = Command::new(own).env(JOB, text).output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("a reply")
}

/// Runs a job and prints the reply.
pub fn run(job: &Job) {
    let file = rusty_loader::open(&job.file).expect("opens");
    let device = Device::Cpu(CpuDevice::new(Some(job.threads)));
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let plan = rusty_compiler::compile(&graph, device.target()).expect("plan");
    let (rows, vocab) = (plan.row_budget(), plan.vocab);
    let workload = Workload {
        prompt: job.prompt,
        generate: job.generate,
        depth: job.depth,
        batch: job.batch,
        adapters: 0,
    };
    let options = BindOptions {
        pages: workload.pages(),
        kv: KvFormat::F16,
        slots: 0,
    };
    let mut executable = rusty_compiler::bind(plan, &*file, &device, &options).expect("binds");
    let mut reply = Reply {
        logits: logits(&mut *executable, &job.tokens),
        ..Reply::default()
    };
    let results = measure(&mut *executable, rows, vocab, &workload, job.repetitions).expect("runs");
    reply.rates = results.into_iter().flat_map(|r| r.samples).collect();
    let held = executable.memory();
    reply.anonymous = resident("RssAnon:").saturating_sub(held.resident_weights);
    reply.weights = held.mapped_weights + held.resident_weights;
    reply.peak = resident("VmHWM:");
    println!("{}", serde_json::to_string(&reply).expect("JSON"));
}

fn logits(executable: &mut dyn Executable, tokens: &[u32]) -> Vec<f32> {
    let Some(last) = tokens.len().checked_sub(1) else {
        return vec![];
    };
    let mut wants = vec![Want::Nothing; tokens.len()];
    wants[last] = Want::Logits;
    let pages: Vec<u32> = (0..BindOptions::pages_for(tokens.len())).collect();
    let step = Step {
        tokens,
        positions: &(0..tokens.len() as u32).collect::<Vec<_>>(),
        sequence_of: &vec![0; tokens.len()],
        sequences: &[Sequence {
            pages: &pages,
            rope_length: pages.len() as u32 * PAGE_TOKENS as u32,
        }],
        slots: &vec![SlotId::BASE; tokens.len()],
        wants: &wants,
    };
    let output = executable.run(&step).expect("runs");
    match output.results.into_iter().next() {
        Some((_, RowResult::Logits(logits))) => logits,
        other => panic!("no logits but {other:?}"),
    }
}

/// A line of the system's account of this process, in bytes.
fn resident(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with(key));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
