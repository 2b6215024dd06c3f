//! Rusty beside llama.cpp and PyTorch on this machine's CPU: `cargo bench -p rusty-benches --bench peers`.
//!
//! Every work runs in processes of its own, Rusty's and the peer's in turn, on the same file of random weights of a real
//! shape, with the same threads and context, after a warm-up of the same work. Before anything is timed the two answer the
//! same prompt, and their logits must agree. What counts is the ratio within a round: other guests of a shared machine
//! disturb both. The table and the plot of the last run lie in `benches/record/peers.md` and `peers.svg`.
//!
//! * `RUSTY_PEERS_ONLY=TEXT`: works whose name holds the text; nothing is recorded. `formats`: whether llama.cpp reads
//!   every format that Rusty writes, which comes first otherwise.
//! * `RUSTY_PEERS_ROUNDS=N`: rounds, 3 by default.
//! * `RUSTY_PEERS_PYTHON=PATH`: a Python that has the packages of `requirements.txt`, which are installed below `target/`
//!   otherwise. llama.cpp is built from source then, which takes some minutes.

mod check;
mod formats;
mod own;
mod report;
mod works;

use report::{Report, Row};
use rusty_benches::python::Python;
use rusty_benches::{bandwidth, middle};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use works::{Peer, WORKS, Work};

/// Names the job of a process that does Rusty's side.
const JOB: &str = "RUSTY_PEERS_JOB";

/// What one process measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    shape: String,
    format: String,
    /// The model; PyTorch makes its own.
    file: PathBuf,
    /// Tokens of a prompt that is timed, or 0.
    prompt: usize,
    /// Tokens that are generated one by one and timed, where there is no prompt.
    generate: usize,
    depth: usize,
    batch: usize,
    threads: usize,
    repetitions: usize,
    /// A prompt whose last logits are wanted; may be empty.
    tokens: Vec<u32>,
}

/// What it found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Reply {
    /// Tokens per second, by repetition.
    rates: Vec<f64>,
    #[serde(default)]
    logits: Vec<f32>,
    /// Bytes resident in the end that are no file's pages, less copies of weights.
    #[serde(default)]
    anonymous: u64,
    /// Most bytes that were ever resident.
    #[serde(default)]
    peak: u64,
    /// Bytes of weights as they are held in the end.
    #[serde(default)]
    weights: u64,
}

impl Reply {
    fn rate(&self) -> f64 {
        middle(self.rates.clone())
    }
}

/// A random model of each shape and format, made when it is first wanted.
struct Files {
    folder: tempfile::TempDir,
    made: BTreeMap<String, PathBuf>,
}

impl Files {
    fn of(&mut self, work: &Work) -> PathBuf {
        let name = format!("{}-{}.gguf", work.shape, work.format);
        let path = self.folder.path().join(&name);
        let save = || {
            rusty_loader::random::save(work.shape, work.format, &path).expect("a file");
            path.clone()
        };
        self.made.entry(name).or_insert_with(save).clone()
    }
}

/// A peer's reply to a job.
fn ask(python: &Python, script: &str, job: &Job) -> Reply {
    let text = serde_json::to_string(job).expect("JSON");
    let said = python.run(&format!("peers/{script}"), &text);
    serde_json::from_str(&said).expect("a reply")
}

fn compare(work: &Work, python: &Python, file: &Path, threads: usize, rounds: usize) -> Row {
    let peer = |job: &Job| match work.peer {
        Peer::LlamaCpp => ask(python, "run_llama_cpp.py", job),
        Peer::PyTorch(precision) => {
            let format = precision.into();
            let job = Job {
                format,
                ..job.clone()
            };
            ask(python, "run_pytorch.py", &job)
        }
    };
    let job = Job {
        shape: work.shape.into(),
        format: work.format.into(),
        file: file.into(),
        prompt: work.prompt,
        generate: work.generate,
        depth: work.depth,
        batch: work.batch,
        threads,
        repetitions: 2,
        tokens: vec![],
    };
    if work.peer == Peer::LlamaCpp {
        check::answers_agree(&work.name(), &job, own::process, peer);
    }
    let mut row = Row::new(work);
    for round in 0..rounds {
        let (own, other) = (own::process(&job), peer(&job));
        eprintln!(
            "{:<44} round {round}: {:8.1} {:8.1} tok/s",
            work.name(),
            own.rate(),
            other.rate()
        );
        row.add(&own, &other);
    }
    row
}

fn main() {
    if let Ok(job) = std::env::var(JOB) {
        return own::run(&serde_json::from_str(&job).expect("a job"));
    }
    // Asked what there is (`--list`), or run as a test.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let only = std::env::var("RUSTY_PEERS_ONLY").ok();
    let rounds = std::env::var("RUSTY_PEERS_ROUNDS").map_or(3, |n| n.parse().expect("a number"));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let python = Python::ready();
    let mut files = Files {
        folder: tempfile::tempdir().expect("a folder"),
        made: BTreeMap::new(),
    };
    if only.as_ref().is_none_or(|only| only == "formats") {
        formats::are_read(threads, |job| ask(&python, "run_llama_cpp.py", job));
    }
    let mut report = Report::new(threads, rounds);
    for work in WORKS {
        if only
            .as_ref()
            .is_some_and(|only| !work.name().contains(only.as_str()))
        {
            continue;
        }
        let file = files.of(work);
        report
            .rows
            .push(compare(work, &python, &file, threads, rounds));
        report.bandwidth(bandwidth::read(threads));
        // After each work, so that a run that ends early leaves something.
        if only.is_none() {
            report.save(&Path::new(env!("CARGO_MANIFEST_DIR")).join("record"));
        }
    }
    println!("{}", report.table());
}
