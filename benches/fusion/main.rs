//! Chains of operations as Rusty fuses them, beside Burn and PyTorch op by op, and the traffic that fusion saves:
//! `cargo bench -p rusty-benches --bench fusion`.
//!
//! All sides make the same numbers in single precision, and their last rows must agree before anything is timed. Each is
//! timed from inputs that are at hand to the last row in the host's memory, in turn, round by round; Rusty's side also
//! gathers its inputs from tables, which the others do not. Burn is a program of its own (`benches/burn`), which is
//! compiled when this first runs and takes some minutes: its Flex back end on the CPU, its wgpu back end beside any GPU.
//! PyTorch is the one that `peers` installs: on CUDA where Rusty runs there, else on the CPU.
//!
//! * `RUSTY_FUSION_DEVICE=DEVICE`: `cpu`, which is recorded in `benches/record/fusion.md`, or a GPU.
//! * `RUSTY_FUSION_ONLY=TEXT`: chains whose name holds the text; nothing is recorded.

mod chains;
mod own;
mod traffic;

use chains::{CHAINS, Dims};
use own::Own;
use rusty_backend::Device;
use rusty_benches::python::{Python, said};
use rusty_benches::{machine, middle};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rounds in turn.
const ROUNDS: usize = 3;
/// Seconds for which a side runs to get going, and then those for which it is timed, in each round.
const WARM_UP: f64 = 0.2;
const TIMED: f64 = 0.3;
/// Rows of a prompt and of a decoded token; attention and products are compared for both.
const ROWS: [usize; 2] = [512, 1];

#[derive(Clone, Serialize)]
struct Job {
    chain: &'static str,
    device: String,
    threads: usize,
    warm_up: f64,
    timed: f64,
    #[serde(flatten)]
    dims: Dims,
}

#[derive(Deserialize)]
struct Reply {
    /// Of each run.
    seconds: Vec<f64>,
    /// The last row.
    answer: Vec<f32>,
}

/// The peers, ready to run.
struct Peers {
    burn: PathBuf,
    python: Python,
}

impl Peers {
    fn ready() -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let target = here.join("../target/burn");
        let mut build = Command::new("cargo");
        build.args(["build", "--release", "--manifest-path"]);
        build.arg(here.join("burn/Cargo.toml"));
        build.arg("--target-dir").arg(&target);
        let status = build.status().expect("cargo");
        assert!(status.success(), "{build:?} failed");
        Self {
            burn: target.join("release/rusty-bench-burn"),
            python: Python::ready(),
        }
    }

    fn burn(&self, job: &Job) -> Reply {
        reply(&said(Command::new(&self.burn).arg(text(job))))
    }

    fn pytorch(&self, job: &Job) -> Reply {
        reply(&self.python.run("fusion/run_pytorch.py", &text(job)))
    }
}

fn text(job: &Job) -> String {
    serde_json::to_string(job).expect("JSON")
}

fn reply(said: &str) -> Reply {
    serde_json::from_str(said).expect("a reply")
}

/// Seconds of each side, the middle of all rounds, once their answers agree.
fn compare(job: &Job, own: &mut Own, peers: &Peers) -> [f64; 3] {
    let mut all: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        let replies = [own.run(job), peers.burn(job), peers.pytorch(job)];
        for (name, other) in [("Burn", &replies[1]), ("PyTorch", &replies[2])] {
            let apart = distance(&replies[0].answer, &other.answer);
            assert!(apart < 1e-4, "{}: {apart} from {name}", job.chain);
        }
        for (all, reply) in all.iter_mut().zip(replies) {
            all.push(middle(reply.seconds));
        }
    }
    all.map(middle)
}

/// The length of the difference relative to the second's.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "rows of different widths");
    let length = |all: &mut dyn Iterator<Item = f32>| -> f64 {
        all.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
    };
    let apart = length(&mut a.iter().zip(b).map(|(a, b)| a - b));
    apart / length(&mut b.iter().copied())
}

fn main() {
    // Asked what there is (`--list`), or run as a test.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let only = std::env::var("RUSTY_FUSION_ONLY").ok();
    let choice = std::env::var("RUSTY_FUSION_DEVICE").unwrap_or("cpu".into());
    let device = Device::open(&choice.parse().expect("a device"), None).expect("a device");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let peers = Peers::ready();
    let mut table = String::from(
        "| chain | rows | kernels | Rusty (µs) | Burn (µs) | PyTorch (µs) | Burn / Rusty | PyTorch / Rusty |\n|---|---|---|---|---|---|---|---|\n",
    );
    let wanted = CHAINS
        .iter()
        .filter(|c| only.as_ref().is_none_or(|o| c.name.contains(o)));
    for (chain, rows) in wanted.flat_map(|c| ROWS.map(|rows| (c, rows))) {
        let job = Job {
            chain: chain.name,
            device: choice.clone(),
            threads,
            warm_up: WARM_UP,
            timed: TIMED,
            dims: Dims::of(rows),
        };
        let mut own = Own::new(chain, job.dims, &device);
        let [own_s, burn, torch] = compare(&job, &mut own, &peers);
        let _ = writeln!(
            table,
            "| {} | {rows} | {} of {} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} |",
            chain.name,
            own.kernels,
            own.unfused,
            own_s * 1e6,
            burn * 1e6,
            torch * 1e6,
            burn / own_s,
            torch / own_s
        );
    }
    let report = format!(
        "# Chains fused and op by op, {}\n\n{}, {threads} threads, device {}; commit {} (but for this file). `cargo bench -p rusty-benches --bench fusion`: \
         {ROUNDS} rounds in turn of {TIMED} s, the middle of each and of all; answers agreed. Kernels: those that the chain and its gathers become, of as many operations. \
         Rusty gathers inputs from tables, which takes a kernel that the others do not have.\n\n{table}\n{}",
        machine::now(),
        machine::cpu(),
        device.target().name,
        machine::commit(),
        traffic::table()
    );
    println!("{report}");
    if only.is_none() && choice == "cpu" {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("record/fusion.md");
        std::fs::write(path, report).expect("the record");
    }
}
