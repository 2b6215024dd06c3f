//! Rusty beside llama.cpp and PyTorch on this machine's CPU: `cargo bench -p benches --bench peers`.
//!
//! Every work runs in processes of its own, Rusty's and the peer's in turn, on the same file of random weights of a real
//! shape, with the same threads and context, after a warm-up of the same work. Before anything is timed the two answer the
//! same prompt, and their logits must agree: a token behind it, at a depth or of several sequences where the work is such.
//! PyTorch reads no GGUF, so Rusty answers from the checkpoint that PyTorch writes then. What counts is the ratio within a
//! round: other guests of a shared machine disturb both. The table and the plot of the last run lie in
//! `benches/record/peers.md` and `peers.svg`.
//!
//! Not all works are speeds of models. Opening is timed inside processes that have just started, from a file in the page
//! cache, with a vocabulary of the shape's size, to the first token. Memory is what a process takes at most beside weights.
//! What an adapter costs is told beside Rusty without it, in turn in one process.
//!
//! * `RUSTY_PEERS_ONLY=TEXT,...`: works whose name holds one of the texts; nothing is recorded. `formats`: whether llama.cpp reads
//!   every format that Rusty writes, which comes first otherwise.
//! * `RUSTY_PEERS_ROUNDS=N`: rounds, 3 by default.
//! * `RUSTY_PEERS_BANDWIDTH=GB/s`: sides of works that memory bounds [wait](quiet) until memory is read that fast, and count only if it
//!   still is behind them; rounds that wait too long are left out.
//! * `RUSTY_PEERS_PYTHON=PATH`: a Python that has the packages of `requirements.txt`, which are installed below `target/`
//!   otherwise. llama.cpp is built from source then, which takes some minutes.

mod check;
mod formats;
mod own;
mod plot;
mod quiet;
mod report;
mod works;

use quiet::Quiet;
use report::{Report, Row};
use rusty_backend::{CpuDevice, Device};
use rusty_benches::kernels::Bounds;
use rusty_benches::python::Python;
use rusty_benches::{middle, vocabulary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use works::{Kind, Peer, WORKS, Work};

/// Names the job of a process that does Rusty's side.
const JOB: &str = "RUSTY_PEERS_JOB";

/// Least cosine beside PyTorch: both multiply floats, which it rounds to bf16 where it is asked for that.
const FLOAT_COSINE: f64 = 0.99;

/// What one process does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Job {
    kind: Kind,
    shape: String,
    format: String,
    /// The model. PyTorch makes its own, and writes it to this folder where answers are compared.
    file: PathBuf,
    /// Tokens of a prompt that is timed, or 0.
    prompt: usize,
    /// Tokens that are generated one by one: behind a prompt, or timed where there is none.
    generate: usize,
    depth: usize,
    batch: usize,
    /// Whether an adapter's cost is measured.
    adapted: bool,
    threads: usize,
    repetitions: usize,
    /// The prompt where both sides must have the same.
    tokens: Vec<u32>,
}

/// What it found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Reply {
    /// What is measured, by repetition; see [`Kind`].
    samples: Vec<f64>,
    /// Without the adapter that `samples` are with.
    base: Vec<f64>,
    logits: Vec<f32>,
    /// Bytes that a step reads, and operations of its products.
    bytes: u64,
    operations: u64,
    /// Bytes of keys and values.
    kv: u64,
}

impl Reply {
    fn middle(&self) -> f64 {
        middle(self.samples.clone())
    }
}

/// A random model of each shape and format, made when it is first wanted.
struct Files {
    folder: tempfile::TempDir,
    made: BTreeMap<String, PathBuf>,
}

impl Files {
    fn of(&mut self, work: &Work) -> PathBuf {
        // What opening takes hangs on the vocabulary; nothing else does.
        let with_vocabulary = work.kind == Kind::Opening;
        let kind = if with_vocabulary { "-vocabulary" } else { "" };
        let name = format!("{}-{}{kind}.gguf", work.shape, work.format);
        let path = self.folder.path().join(&name);
        let save = || {
            match with_vocabulary {
                true => vocabulary::save(work.shape, work.format, &path),
                false => {
                    rusty_loader::random::save(work.shape, work.format, &path).expect("a file");
                }
            }
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

/// Whether Rusty and a peer answer alike.
fn check_answers(work: &Work, job: &Job, peer: impl Fn(&Job) -> Reply) {
    let name = work.name();
    if let Peer::PyTorch(_) = work.peer {
        let folder = tempfile::tempdir().expect("a folder");
        let job = Job {
            file: folder.path().into(),
            ..job.clone()
        };
        let cosine = check::answers_agree(&name, &job, own::process, peer);
        assert!(
            cosine > FLOAT_COSINE,
            "{name}: cosine {cosine} of the logits"
        );
    } else {
        check::answers_agree(&name, job, own::process, peer);
    }
}

/// `rounds` rounds of a work; where memory bounds it, those in which that is `quiet`.
fn compare(
    work: &Work,
    python: &Python,
    file: &Path,
    (threads, rounds): (usize, usize),
    quiet: Option<Quiet>,
) -> Row {
    let format = match work.peer {
        Peer::PyTorch(precision) => precision,
        _ => work.format,
    };
    let job = Job {
        kind: work.kind,
        shape: work.shape.into(),
        format: format.into(),
        file: file.into(),
        prompt: work.prompt,
        generate: work.generate,
        depth: work.depth,
        batch: work.batch,
        adapted: work.peer == Peer::Base,
        threads,
        repetitions: 2,
        tokens: work.tokens(),
    };
    let script = work.peer.script();
    let peer = script.map(|script| move |job: &Job| ask(python, script, job));
    if let Some(peer) = &peer {
        check_answers(work, &job, peer);
    }
    let mut row = Row::new(work);
    let quiet = quiet.filter(|_| work.is_bound_by_memory());
    let side = |side: &dyn Fn() -> Reply| match quiet {
        Some(quiet) => quiet.of(side),
        None => Some(side()),
    };
    for round in 0..rounds {
        let own = side(&|| own::process(&job));
        let other = own.as_ref().and_then(|own| match &peer {
            Some(peer) => side(&|| peer(&job)),
            None => Some(Reply {
                samples: own.base.clone(),
                ..Reply::default()
            }),
        });
        let Some((own, other)) = own.zip(other) else {
            eprintln!("{:<44} round {round}: memory was too slow", work.name());
            continue;
        };
        eprintln!(
            "{:<44} round {round}: {:>9} {:>9}",
            work.name(),
            work.figure(own.middle()),
            work.figure(other.middle())
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
    let device = Device::Cpu(CpuDevice::new(Some(threads)));
    let python = Python::ready();
    let mut files = Files {
        folder: tempfile::tempdir().expect("a folder"),
        made: BTreeMap::new(),
    };
    if only.as_ref().is_none_or(|only| only == "formats") {
        formats::are_read(threads, |job| ask(&python, "run_llama_cpp.py", job));
    }
    let quiet = Quiet::asked(threads);
    let mut report = Report::new(threads, rounds, quiet.map(Quiet::least));
    for work in WORKS {
        let is_wanted = |only: &String| only.split(',').any(|text| work.name().contains(text));
        if !only.as_ref().is_none_or(is_wanted) {
            continue;
        }
        let file = files.of(work);
        let row = compare(work, &python, &file, (threads, rounds), quiet);
        report.rows.extend((!row.is_empty()).then_some(row));
        report.bounds.push(Bounds::of(&device).expect("bounds"));
        // After each work, so that a run that ends early leaves something.
        if only.is_none() {
            report.save(&Path::new(env!("CARGO_MANIFEST_DIR")).join("record"));
        }
    }
    println!("{}", report.table());
}
