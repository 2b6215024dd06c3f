//! How speed changes with depth, batch and prompt: `cargo bench -p benches --bench scaling`.
//!
//! Random weights of Qwen3-0.6B's shape in Q4_0, on this machine's CPU, whose answers are checked first. Each speed stands beside what
//! the machine allows: weights, keys and values are read once per step, products multiply bytes, and attention single precision,
//! each as fast as loops do it in the same run. The tables and the plot of
//! the last run lie in `benches/record/scaling.md` and `scaling.svg`; what makes the knees says `docs/performance.md`.
//!
//! `RUSTY_SCALING_ONLY=depth|batch|prompt`: those curves alone; nothing is recorded.

mod check;
mod curve;

use curve::{Curve, Need, Point, plot};
use rusty_backend::{CpuDevice, Device};
use rusty_benches::kernels::Bounds;
use rusty_benches::{bandwidth, machine, middle};
use rusty_compiler::{BindOptions, Executable, KvFormat, Plan};
use rusty_engine::throughput::{Workload, measure};
use rusty_graph::{Graph, Op};
use rusty_loader::ModelFile;
use std::path::Path;

const SHAPE: &str = "qwen3-0.6b";
const FORMAT: &str = "q4_0";
const DEPTHS: [usize; 8] = [0, 512, 1024, 2048, 4096, 8192, 16384, 32768];
const BATCHES: [usize; 8] = [1, 2, 4, 8, 12, 16, 24, 32];
const PROMPTS: [usize; 12] = [1, 4, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
/// Tokens that are decoded at a point.
const DECODED: usize = 16;
const REPETITIONS: usize = 3;
/// How keys and values are stored where depth counts.
const FORMATS: [KvFormat; 4] = [
    KvFormat::F16,
    KvFormat::Bf16,
    KvFormat::Q8_0,
    KvFormat::Q4_0,
];

/// The model and the device.
struct Subject<'a> {
    file: &'a dyn ModelFile,
    graph: Graph,
    device: Device,
    plan: Plan,
}

impl Subject<'_> {
    fn bound(&self, most: &Workload, kv: KvFormat) -> Box<dyn Executable> {
        let options = BindOptions {
            pages: most.pages(),
            kv,
            slots: 0,
        };
        rusty_compiler::bind(self.plan.clone(), self.file, &self.device, &options).expect("binds")
    }

    /// Whether answers with each format are the interpreter's.
    fn check(&self) {
        let oracle = check::Oracle::new(&self.graph, self.file);
        for kv in FORMATS {
            oracle.check(&mut *self.bound(&check::WORKLOAD, kv), kv);
        }
    }

    /// The middle of a workload's repetitions.
    fn rate(&self, executable: &mut dyn Executable, workload: &Workload) -> f64 {
        let (rows, vocab) = (self.plan.row_budget(), self.plan.vocab);
        let found = measure(executable, rows, vocab, workload, REPETITIONS).expect("runs");
        middle(found.into_iter().flat_map(|t| t.samples).collect())
    }

    /// What a token needs, of a step's so many rows behind `depth` others each on average; each row needs the head, or only one does.
    fn need(&self, rows: usize, depth: f64, kv: KvFormat, heads: usize) -> Need {
        // The embedding of a token is one row of a table that is read as the head.
        let weights: u64 = self.plan.weights.iter().map(|w| w.bytes()).sum();
        let products = |head: bool| -> u64 {
            let sites = self.graph.sites.iter().filter(|s| s.is_head() == head);
            sites.map(|s| 2 * u64::from(s.k) * u64::from(s.n)).sum()
        };
        // A pair of a query and a key: two dot products of a head's lanes.
        let pair = |op: &Op| match op {
            Op::Attention(spec) => 4 * u64::from(spec.heads) * u64::from(spec.head_dim),
            _ => 0,
        };
        let pairs: u64 = self.graph.nodes.iter().map(|node| pair(&node.op)).sum();
        let rows = rows as f64;
        Need {
            bytes: weights as f64 / rows + depth * self.plan.kv_bytes_per_token(kv) as f64,
            products: products(false) as f64 + products(true) as f64 * heads as f64 / rows,
            attention: depth * pairs as f64,
        }
    }

    fn depths(&self, kv: KvFormat) -> Curve {
        let at = |depth: usize| Workload {
            prompt: 0,
            generate: DECODED,
            depth,
            batch: 1,
            adapters: 0,
        };
        let mut executable = self.bound(&at(DEPTHS[DEPTHS.len() - 1]), kv);
        let point = |depth: usize| Point {
            x: depth,
            rate: self.rate(&mut *executable, &at(depth)),
            need: self.need(1, depth as f64, kv, 1),
        };
        Curve {
            name: format!("decoding at a depth, {} keys and values", kv.name()),
            quantity: "depth",
            points: DEPTHS.into_iter().map(point).collect(),
        }
    }

    fn batches(&self) -> Curve {
        let of = |batch: usize| Workload {
            prompt: 0,
            generate: DECODED,
            depth: 0,
            batch,
            adapters: 0,
        };
        let mut executable = self.bound(&of(BATCHES[BATCHES.len() - 1]), KvFormat::F16);
        let point = |batch: usize| Point {
            x: batch,
            rate: self.rate(&mut *executable, &of(batch)),
            need: self.need(batch, 0.0, KvFormat::F16, batch),
        };
        Curve {
            name: "decoding several sequences".into(),
            quantity: "sequences",
            points: BATCHES.into_iter().map(point).collect(),
        }
    }

    fn prompts(&self) -> Curve {
        let of = |prompt: usize| Workload {
            prompt,
            generate: 0,
            depth: 0,
            batch: 1,
            adapters: 0,
        };
        let mut executable = self.bound(&of(PROMPTS[PROMPTS.len() - 1]), KvFormat::F16);
        let point = |prompt: usize| {
            let keys = (prompt + 1) as f64 / 2.0;
            let need = self.need(prompt, keys, KvFormat::F16, 1);
            Point {
                x: prompt,
                rate: self.rate(&mut *executable, &of(prompt)),
                // Rows of a step share keys and values, too.
                need: Need {
                    bytes: self.need(prompt, 1.0, KvFormat::F16, 1).bytes,
                    ..need
                },
            }
        };
        Curve {
            name: "reading a prompt".into(),
            quantity: "tokens",
            points: PROMPTS.into_iter().map(point).collect(),
        }
    }
}

fn main() {
    // Asked what there is (`--list`), or run as a test.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let only = std::env::var("RUSTY_SCALING_ONLY").ok();
    let wanted = |name: &str| {
        only.as_ref()
            .is_none_or(|only| name.contains(only.as_str()))
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let file = rusty_loader::random::model(SHAPE, FORMAT).expect("a shape");
    let device = Device::Cpu(CpuDevice::new(Some(threads)));
    let bounds = Bounds::of(&device).expect("bounds of a CPU");
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let plan = rusty_compiler::compile(&graph, device.target()).expect("plan");
    let subject = Subject {
        file: &*file,
        graph,
        device,
        plan,
    };
    subject.check();
    let mut curves = vec![];
    let mut bandwidths = vec![bounds.bandwidth];
    for kv in FORMATS {
        if wanted("depth") {
            curves.push(subject.depths(kv));
            bandwidths.push(bandwidth::read(threads));
        }
    }
    if wanted("batch") {
        curves.push(subject.batches());
        bandwidths.push(bandwidth::read(threads));
    }
    if wanted("prompt") {
        curves.push(subject.prompts());
    }
    let bounds = Bounds {
        bandwidth: middle(bandwidths),
        ..bounds
    };
    let text = report(&curves, &bounds, threads);
    println!("{text}");
    if only.is_none() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("record");
        std::fs::write(folder.join("scaling.md"), text.trim_end().to_owned() + "\n")
            .expect("the tables");
        std::fs::write(folder.join("scaling.svg"), plot(&curves)).expect("the plot");
    }
}

/// The tables of all curves.
fn report(curves: &[Curve], bounds: &Bounds, threads: usize) -> String {
    let mut text = format!(
        "# Speed over depth, batch and prompt, {}\n\n{}, {threads} threads; commit {}. `cargo bench -p benches --bench \
         scaling`: random weights of {SHAPE} in {FORMAT}; each figure is the middle of {REPETITIONS} repetitions. Read \
         bandwidth: {:.1} GB/s. A bound is the longer of what bytes and what operations take.\n\n![curves](scaling.svg)\n\n",
        machine::now(),
        machine::cpu(),
        machine::commit(),
        bounds.bandwidth / 1e9
    );
    for curve in curves {
        text += &curve.table(bounds);
    }
    text
}
