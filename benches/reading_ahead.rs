//! One row on cores that [read ahead](rusty_backend::Target::reads_ahead) on their own beside one whose weights are asked for:
//! `cargo bench -p benches --no-default-features --bench reading_ahead`.
//!
//! The same random weights of a real shape are bound twice, each way with its own threads, and a few tokens are decoded in one
//! way and then in the other, again and again. Other guests of a shared machine disturb both alike, so quantiles of many such
//! turns can be compared: the lowest are of moments when memory is quiet. Both ways give the same
//! logits to the bit, which is checked first.
//!
//! * `RUSTY_READING_AHEAD_ONLY=FORMAT`: one of `FORMATS`.

use rusty_backend::{CpuDevice, Device};
use rusty_benches::machine;
use rusty_compiler::{BindOptions, Executable, KvFormat, RowResult, Sequence, SlotId, Step, Want};
use rusty_engine::throughput::{Workload, measure};
use rusty_loader::ModelFile;

const SHAPE: &str = "qwen3-0.6b";
const FORMATS: [&str; 6] = ["q4_0", "q4_k_m", "q8_0", "bf16", "f16", "f32"];
/// Tokens of a turn, behind a few that are not timed and may find the other way's threads awake.
const TOKENS: usize = 16;
const TURNS: usize = 100;

/// Tokens of one sequence, without anything before them.
const WORK: Workload = Workload {
    prompt: 0,
    generate: TOKENS,
    depth: 0,
    batch: 1,
    adapters: 0,
};

/// A model bound in one way, and the milliseconds per token of its turns.
struct Way {
    executable: Box<dyn Executable>,
    row_budget: usize,
    vocab: u32,
    times: Vec<f64>,
}

impl Way {
    fn new(file: &dyn ModelFile, reads_ahead: bool) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let device = CpuDevice::new(Some(threads)).reading_ahead(reads_ahead);
        let device = Device::Cpu(device);
        let graph = rusty_graph::arch::build(file).expect("graph");
        let plan = rusty_compiler::compile(&graph, device.target()).expect("plan");
        let options = BindOptions {
            pages: WORK.pages(),
            kv: KvFormat::F16,
            slots: 0,
        };
        Self {
            row_budget: plan.row_budget(),
            vocab: plan.vocab,
            executable: rusty_compiler::bind(plan, file, &device, &options).expect("binds"),
            times: vec![],
        }
    }

    fn turn(&mut self) {
        let executable = &mut *self.executable;
        let found = measure(executable, self.row_budget, self.vocab, &WORK, 1).expect("runs");
        let rates = found.iter().flat_map(|result| &result.samples);
        self.times.extend(rates.map(|rate| 1e3 / rate));
    }

    /// Logits of a first token, once weights lie as they stay.
    fn logits(&mut self) -> Vec<f32> {
        let step = Step {
            tokens: &[7],
            positions: &[0],
            sequence_of: &[0],
            sequences: &[Sequence {
                pages: &[0],
                rope_length: 1,
            }],
            wants: &[Want::Logits],
            slots: &[SlotId::BASE],
        };
        let output = self.executable.run(&step).expect("runs");
        match output.results.into_iter().next() {
            Some((_, RowResult::Logits(logits))) => logits,
            _ => panic!("a step that wants logits gives some"),
        }
    }

    /// The time below which a part of them lies.
    fn quantile(&mut self, part: f64) -> f64 {
        self.times.sort_by(f64::total_cmp);
        let last = self.times.len() - 1;
        self.times[(part * last as f64) as usize]
    }
}

fn main() {
    // Asked what there is (`--list`), or run as a test.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let only = std::env::var("RUSTY_READING_AHEAD_ONLY").ok();
    println!(
        "{}, {}, commit {}: {SHAPE}, milliseconds per token of {TURNS} turns of {TOKENS}\n",
        machine::cpu(),
        machine::now(),
        machine::commit()
    );
    println!(
        "| format | way | tenth | quarter | middle | three quarters |\n|---|---|---|---|---|---|"
    );
    for format in FORMATS {
        if only.as_ref().is_some_and(|only| only != format) {
            continue;
        }
        let file = rusty_loader::random::model(SHAPE, format).expect(format);
        let mut ways = [Way::new(&*file, false), Way::new(&*file, true)];
        ways.iter_mut().for_each(Way::turn);
        let [asked, unasked] = &mut ways;
        assert!(asked.logits() == unasked.logits(), "{format}: other logits");
        ways.iter_mut().for_each(|way| way.times.clear());
        for turn in 0..TURNS {
            // Neither way is always the first.
            ways[turn % 2].turn();
            ways[1 - turn % 2].turn();
        }
        for (way, name) in ways.iter_mut().zip(["asked", "reads ahead"]) {
            let quantiles = [0.1, 0.25, 0.5, 0.75].map(|part| format!("{:.2}", way.quantile(part)));
            println!("| {format} | {name} | {} |", quantiles.join(" | "));
        }
    }
}
