//! Rusty's side of a comparison.

use super::works::Kind;
use super::{JOB, Job, Reply, check};
use rusty_adapters::{Precision, random};
use rusty_backend::{CpuDevice, Device, DeviceChoice};
use rusty_compiler::{
    BindOptions, Executable, KvFormat, PAGE_TOKENS, RowResult, Sequence, SlotId, Step, Want,
};
use rusty_engine::throughput::{Workload, measure};
use rusty_engine::{Engine, EngineOptions, Prompt, Request};
use rusty_graph::Graph;
use rusty_loader::ModelFile;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// Rank of the adapter, in half precision, on all linear layers but the head.
const RANK: u32 = 16;

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
    let reply = match job.kind {
        Kind::Answer | Kind::Speed => steps(job),
        Kind::Opening => opening(job),
        Kind::Memory => memory(job),
    };
    println!("{}", serde_json::to_string(&reply).expect("JSON"));
}

/// Steps of a plan, without an engine above it: an answer, or tokens per second.
fn steps(job: &Job) -> Reply {
    let file = rusty_loader::open(&job.file).expect("opens");
    let device = Device::Cpu(CpuDevice::new(Some(job.threads)));
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let plan = rusty_compiler::compile(&graph, device.target()).expect("plan");
    let (rows, vocab) = (plan.row_budget(), plan.vocab);
    let kv_of_token = plan.kv_bytes_per_token(KvFormat::F16);
    let base = Workload {
        prompt: job.prompt,
        generate: job.generate,
        depth: job.depth,
        batch: job.batch,
        adapters: 0,
    };
    let options = BindOptions {
        pages: base.pages(),
        kv: KvFormat::F16,
        slots: u32::from(job.adapted),
    };
    let mut executable = rusty_compiler::bind(plan, &*file, &device, &options).expect("binds");
    let mut reply = Reply::default();
    if job.kind == Kind::Answer {
        reply.logits = answer(&mut *executable, &job.tokens, job.batch, rows, SlotId::BASE);
        return reply;
    }
    if job.adapted {
        attach(&mut *executable, &graph, rows);
    }
    let mut rates = |workload: &Workload, repetitions: usize| -> Vec<f64> {
        let results = measure(&mut *executable, rows, vocab, workload, repetitions);
        let results = results.expect("runs").into_iter();
        results.flat_map(|result| result.samples).collect()
    };
    if job.adapted {
        let adapted = Workload {
            adapters: 1,
            ..base
        };
        for _ in 0..job.repetitions {
            reply.samples.extend(rates(&adapted, 1));
            reply.base.extend(rates(&base, 1));
        }
    } else {
        reply.samples = rates(&base, job.repetitions);
    }
    let held = executable.memory();
    let cached = job.batch * (job.depth + job.generate / 2);
    let weights = held.mapped_weights + held.resident_weights - unread(&*file);
    reply.bytes = weights + held.adapters + cached as u64 * kv_of_token;
    reply.operations = operations(&graph, job);
    reply
}

/// Bytes of a table of embeddings that is not the head, too: a step reads a few rows of it.
fn unread(file: &dyn ModelFile) -> u64 {
    let head = file.tensor("output.weight");
    let table = head.and_then(|_| file.tensor("token_embd.weight"));
    table.map_or(0, |table| table.bytes.len() as u64)
}

/// Operations of a step's products. Of a prompt only the last row needs the head.
fn operations(graph: &Graph, job: &Job) -> u64 {
    let of_row = |head: bool| -> u64 {
        let sites = graph.sites.iter().filter(|site| site.is_head() == head);
        sites
            .map(|site| 2 * u64::from(site.k) * u64::from(site.n))
            .sum()
    };
    let rows = job.prompt.max(job.batch);
    rows as u64 * of_row(false) + job.batch as u64 * of_row(true)
}

/// Puts a random adapter into the first slot and sees that it does something.
fn attach(executable: &mut dyn Executable, graph: &Graph, rows: usize) {
    let slot = SlotId(1);
    let adapter = random("random", &graph.sites, RANK, 1, Precision::F16);
    executable
        .attach(slot, Arc::new(adapter))
        .expect("attached");
    let tokens = check::prompt(check::SHORT);
    let with = answer(executable, &tokens, 1, rows, slot);
    let without = answer(executable, &tokens, 1, rows, SlotId::BASE);
    assert!(with != without, "the adapter changes nothing");
}

/// Logits of the last token, which is a step of its own. Of several sequences, each with other tokens, that is one step, and
/// each gives an equal share of its logits.
fn answer(
    executable: &mut dyn Executable,
    tokens: &[u32],
    batch: usize,
    budget: usize,
    slot: SlotId,
) -> Vec<f32> {
    let (last, prompt) = tokens.split_last().expect("a prompt");
    let numbers = 0..batch as u32;
    let each = BindOptions::pages_for(tokens.len());
    let pages: Vec<Vec<u32>> = numbers
        .clone()
        .map(|s| (s * each..(s + 1) * each).collect())
        .collect();
    let sequences: Vec<Sequence<'_>> = pages
        .iter()
        .map(|pages| Sequence {
            pages,
            rope_length: each * PAGE_TOKENS as u32,
        })
        .collect();
    for s in numbers.clone() {
        let places = prompt.iter().zip(0u32..);
        let rows: Vec<Place> = places.map(|(t, at)| (t + s, at, s)).collect();
        for rows in rows.chunks(budget) {
            step(executable, rows, &sequences, slot, Want::Nothing);
        }
    }
    let at = prompt.len() as u32;
    let rows: Vec<Place> = numbers.map(|s| (last + s, at, s)).collect();
    let all = step(executable, &rows, &sequences, slot, Want::Logits);
    let shares = all.iter().enumerate();
    shares
        .flat_map(|(s, logits)| logits.iter().skip(s).step_by(batch).copied())
        .collect()
}

/// A row's token, position and sequence.
type Place = (u32, u32, u32);

/// Runs rows that want the same; logits, where they want those.
fn step(
    executable: &mut dyn Executable,
    rows: &[Place],
    sequences: &[Sequence<'_>],
    slot: SlotId,
    want: Want,
) -> Vec<Vec<f32>> {
    let output = executable.run(&Step {
        tokens: &rows.iter().map(|row| row.0).collect::<Vec<_>>(),
        positions: &rows.iter().map(|row| row.1).collect::<Vec<_>>(),
        sequence_of: &rows.iter().map(|row| row.2).collect::<Vec<_>>(),
        sequences,
        slots: &vec![slot; rows.len()],
        wants: &vec![want; rows.len()],
    });
    let results = output.expect("runs").results.into_iter();
    results
        .map(|(_, result)| match result {
            RowResult::Logits(logits) => logits,
            other => panic!("no logits but {other:?}"),
        })
        .collect()
}

/// The context for so many tokens, with some to spare: the same as in `run_llama_cpp.py`.
pub fn context(tokens: usize) -> usize {
    (tokens + 16).next_multiple_of(256)
}

/// An engine with room for a job's tokens.
fn engine(job: &Job) -> Engine {
    let file = rusty_loader::open(&job.file).expect("opens");
    let options = EngineOptions {
        device: DeviceChoice::Cpu,
        threads: Some(job.threads),
        context: Some(context(job.prompt + job.generate)),
        ..EngineOptions::default()
    };
    Engine::load(&*file, &options).expect("engine")
}

/// Has an engine generate so many tokens behind a job's prompt.
fn generate(engine: &Engine, job: &Job, tokens: usize) {
    let request = Request {
        max_tokens: tokens,
        stop_at_end: false,
        ..Request::new(Prompt::Tokens(job.tokens.clone()))
    };
    let mut session = engine.session();
    let answer = session.generate(&request).expect("starts");
    let answer = answer.map(|token| token.expect("a token"));
    // Text that was held back may come behind the last one.
    assert_eq!(answer.filter(|token| token.id.is_some()).count(), tokens);
}

/// Seconds from opening a file to the first token.
fn opening(job: &Job) -> Reply {
    let start = Instant::now();
    let engine = engine(job);
    generate(&engine, job, 1);
    let seconds = start.elapsed().as_secs_f64();
    assert!(engine.tokenizer().is_some(), "the vocabulary is there");
    Reply {
        samples: vec![seconds],
        ..Reply::default()
    }
}

/// Most megabytes resident but for pages of files and copies of weights.
fn memory(job: &Job) -> Reply {
    let engine = engine(job);
    generate(&engine, job, job.generate);
    let held = engine.memory();
    // Copies take the place of a file's pages, matrix by matrix, so most is resident when all of them are made.
    let weights = resident("RssFile:") + held.resident_weights;
    let excess = resident("VmHWM:").saturating_sub(weights);
    Reply {
        samples: vec![excess as f64 / 1e6],
        kv: held.kv,
        ..Reply::default()
    }
}

/// A line of the system's account of this process, in bytes.
fn resident(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with(key)).expect("a line");
    let kib = line.split_whitespace().nth(1);
    kib.and_then(|n| n.parse::<u64>().ok()).expect("a number") * 1024
}
