//! How speed changes with depth, batch and prompt: `cargo bench -p rusty-benches --bench scaling`.
//!
//! Random weights of Qwen3-0.6B's shape in Q4_0, on this machine's CPU. Decoding stands beside what reading weights,
//! keys and values once per step allows at the bandwidth that is measured in the same run. The tables and the plot of
//! the last run lie in `benches/record/scaling.md` and `scaling.svg`; what makes the knees says `docs/performance.md`.
//!
//! `RUSTY_SCALING_ONLY=TEXT`: curves whose name holds the text; nothing is recorded.

use rusty_backend::{CpuDevice, Device};
use rusty_benches::{bandwidth, machine, middle};
use rusty_compiler::{BindOptions, Executable, KvFormat, Plan};
use rusty_engine::throughput::{Workload, measure};
use rusty_loader::ModelFile;
use std::fmt::Write;
use std::path::Path;

const SHAPE: &str = "qwen3-0.6b";
const FORMAT: &str = "q4_0";
const DEPTHS: [usize; 8] = [0, 512, 1024, 2048, 4096, 8192, 16384, 32768];
const BATCHES: [usize; 8] = [1, 2, 4, 8, 12, 16, 24, 32];
const PROMPTS: [usize; 12] = [1, 4, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
/// Tokens that are decoded at a point.
const DECODED: usize = 16;
const REPETITIONS: usize = 3;

/// A point of a curve.
struct Point {
    x: usize,
    /// Tokens per second, all sequences together.
    rate: f64,
    /// Bytes that a step reads; none where operations bound it.
    bytes: Option<u64>,
}

/// Speed over one quantity.
struct Curve {
    name: String,
    quantity: &'static str,
    points: Vec<Point>,
}

/// The model and the device.
struct Subject<'a> {
    file: &'a dyn ModelFile,
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

    /// The middle of a workload's repetitions.
    fn rate(&self, executable: &mut dyn Executable, workload: &Workload) -> f64 {
        let (rows, vocab) = (self.plan.row_budget(), self.plan.vocab);
        let found = measure(executable, rows, vocab, workload, REPETITIONS).expect("runs");
        middle(found.into_iter().flat_map(|t| t.samples).collect())
    }

    /// Bytes of the weights that a decoded token needs.
    fn weights(&self) -> u64 {
        // The embedding of a token is one row of a table that is read as the head.
        self.plan.weights.iter().map(|w| w.bytes()).sum()
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
            bytes: Some(self.weights() + depth as u64 * self.plan.kv_bytes_per_token(kv)),
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
            bytes: Some(self.weights() / batch as u64),
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
        let point = |prompt: usize| Point {
            x: prompt,
            rate: self.rate(&mut *executable, &of(prompt)),
            bytes: None,
        };
        Curve {
            name: "reading a prompt".into(),
            quantity: "tokens",
            points: PROMPTS.into_iter().map(point).collect(),
        }
    }
}

impl Curve {
    /// Its table; `bandwidth` in bytes per second.
    fn table(&self, bandwidth: f64) -> String {
        let mut out = format!("## {}\n\n", capital(&self.name));
        let bounded = self.points.iter().any(|p| p.bytes.is_some());
        let (head, rule) = match bounded {
            true => (" bound by bytes | share of it |", "---|---|"),
            false => ("", ""),
        };
        let _ = writeln!(out, "| {} | tok/s |{head}\n|---|---|{rule}", self.quantity);
        for p in &self.points {
            let _ = write!(out, "| {} | {:.1} |", p.x, p.rate);
            if let Some(bytes) = p.bytes {
                let bound = bandwidth / bytes as f64;
                let _ = write!(out, " {bound:.1} | {:.0}% |", 100.0 * p.rate / bound);
            }
            out += "\n";
        }
        out + "\n"
    }

    /// Its plot, `TALL` high from `top` on: the quantity in doublings, speed from 0 up.
    fn plot(&self, top: f64) -> String {
        const COLOUR: &str = "#2a7f62";
        let most = self.points.iter().map(|p| p.rate).fold(1.0, f64::max);
        let place = |x: usize| ((x.max(1)) as f64).log2();
        let (from, to) = (
            place(self.points[0].x),
            place(self.points[self.points.len() - 1].x),
        );
        // A depth of 0 stands one doubling before the next point.
        let from = if self.points[0].x == 0 {
            place(self.points[1].x) - 1.0
        } else {
            from
        };
        let at = |p: &Point| {
            let x = if p.x == 0 { from } else { place(p.x) };
            (
                60.0 + 700.0 * (x - from) / (to - from),
                top + 150.0 - 120.0 * p.rate / most,
            )
        };
        let mut out = format!(
            "<text x=\"8\" y=\"{}\">{}, tok/s</text>\n",
            top + 14.0,
            capital(&self.name)
        );
        let line: Vec<String> = self
            .points
            .iter()
            .map(|p| {
                let (x, y) = at(p);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{COLOUR}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for p in &self.points {
            let (x, y) = at(p);
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{COLOUR}\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{:.0}</text><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{}</text>",
                y - 6.0,
                p.rate,
                top + 168.0,
                p.x
            );
        }
        out
    }
}

/// Height of a curve's plot.
const TALL: f64 = 185.0;

fn plot(curves: &[Curve]) -> String {
    let height = TALL * curves.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (i, curve) in curves.iter().enumerate() {
        out += &curve.plot(TALL * i as f64);
    }
    out + "</svg>\n"
}

fn capital(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
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
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let plan = rusty_compiler::compile(&graph, device.target()).expect("plan");
    let subject = Subject {
        file: &*file,
        device,
        plan,
    };
    let mut curves = vec![];
    let mut bandwidths = vec![bandwidth::read(threads)];
    for kv in [KvFormat::F16, KvFormat::Q8_0, KvFormat::Q4_0] {
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
    let bandwidth = middle(bandwidths);
    let mut text = format!(
        "# Speed over depth, batch and prompt, {}\n\n{}, {threads} threads; commit {}. `cargo bench -p rusty-benches --bench \
         scaling`: random weights of {SHAPE} in {FORMAT}; each figure is the middle of {REPETITIONS} repetitions. Read \
         bandwidth: {:.1} GB/s.\n\n![curves](scaling.svg)\n\n",
        machine::now(),
        machine::cpu(),
        machine::commit(),
        bandwidth / 1e9
    );
    for curve in &curves {
        text += &curve.table(bandwidth);
    }
    println!("{text}");
    if only.is_none() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("record");
        std::fs::write(folder.join("scaling.md"), text.trim_end().to_owned() + "\n")
            .expect("the tables");
        std::fs::write(folder.join("scaling.svg"), plot(&curves)).expect("the plot");
    }
}
