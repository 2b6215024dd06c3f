//! Kernels one by one, each beside its bound: `cargo bench -p rusty-benches --bench kernels`.
//!
//! A step of a graph that has one kind of kernel takes as long as that kind takes. Each stands beside the longer of two
//! times: its bytes at the bandwidth that a loop reads memory with, and its operations at the rate that a loop reaches
//! in registers, both measured in the same run. A loop's bandwidth is no law: caches hold part of what is read again,
//! and products read faster at times. Answers are checked before anything is timed. Without a filter the table of the
//! run goes to `benches/record/kernels.md`.

mod graphs;
mod peak;
mod report;
mod running;

use criterion::{Criterion, Throughput};
use graphs::Subject;
use report::{Bounds, Kind, Report, Work};
use running::{Rows, Running, check, cosine};
use rusty_adapters::Precision;
use rusty_backend::{CpuDevice, Device};
use rusty_benches::{bandwidth, middle};
use rusty_compiler::SlotId;
use rusty_loader::{Format, formats};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows of a prompt.
const PROMPT: usize = 512;
const DEPTH: usize = 4096;
const BATCH: usize = 16;
const RANK: u32 = 16;
const SAMPLES: usize = 10;
/// Rows of norms.
const NORM_ROWS: usize = 64;

struct Bench {
    criterion: Criterion,
    device: Device,
    report: Report,
}

impl Bench {
    /// Times `run`, which does `work`.
    fn time(&mut self, name: &str, work: Work, mut run: impl FnMut()) {
        let mut samples: Vec<f64> = vec![];
        let (group, name) = name.split_once('/').expect("a group and a name");
        let mut criterion = self.criterion.benchmark_group(group);
        criterion
            .throughput(Throughput::Bytes(work.bytes))
            .sample_size(SAMPLES)
            .measurement_time(Duration::from_secs(2))
            .warm_up_time(Duration::from_millis(500));
        criterion.bench_function(name, |b| {
            b.iter_custom(|times| {
                let start = Instant::now();
                (0..times).for_each(|_| run());
                let elapsed = start.elapsed();
                samples.push(elapsed.as_secs_f64() / times as f64);
                elapsed
            });
        });
        criterion.finish();
        // Criterion warms up first, in rounds of its own.
        samples.drain(..samples.len().saturating_sub(SAMPLES));
        if !samples.is_empty() {
            let name = format!("{group}/{name}");
            self.report.add(&name, work, middle(samples));
        }
    }

    fn bound(&self, subject: &Subject, slots: u32) -> Running {
        Running::new(subject, &self.device, slots)
    }

    fn products(&mut self, format: Format, kind: Kind, least: f64) {
        let subject = graphs::products(format);
        let mut running = self.bound(&subject, 0);
        check(&subject, &mut running, 1, least);
        // One row of many is what it is alone.
        let last = running.step(Rows::of_one(PROMPT, 0));
        let alone = running.step(Rows::of_one(1, PROMPT - 1));
        assert!(last == alone, "a row depends on its neighbours");
        let weights = graphs::product_weights();
        for (name, rows) in [
            ("gemv", 1),
            ("gemm 16 rows", BATCH),
            ("gemm 512 rows", PROMPT),
        ] {
            let work = Work {
                bytes: weights * format.block_bytes() as u64 / format.block_len() as u64,
                operations: 2 * weights * rows as u64,
                kind,
            };
            let name = format!("{name}/{}", format.name());
            self.time(&name, work, || {
                running.step(Rows::of_one(rows, 0));
            });
        }
    }

    fn adapters(&mut self) {
        let format = Format::Blocks(&formats::Q4_0);
        let subject = graphs::products(format);
        for (name, precision) in [("f16", Precision::F16), ("int8", Precision::Int8)] {
            let mut running = self.bound(&subject, BATCH as u32);
            let base = running.step(Rows::of_one(1, 0));
            let mut bytes = 0;
            for slot in 1..=BATCH as u32 {
                let sites = &subject.graph.sites;
                let seed = u64::from(slot);
                let adapter = rusty_adapters::random("random", sites, RANK, seed, precision);
                bytes = adapter.bytes() as u64;
                let attached = running.executable().attach(SlotId(slot), Arc::new(adapter));
                attached.expect("attached");
            }
            let adapted = |count: usize| Rows {
                slots: BATCH as u32,
                apart: count > 1,
                ..Rows::of_one(count, 0)
            };
            let changed = running.step(adapted(1));
            assert!(
                cosine(&base, &changed) < 0.9999,
                "the adapter changes nothing"
            );
            let weights = graphs::product_weights();
            for (rows, text) in [(1, "1 row"), (BATCH, "16 rows, 16 adapters")] {
                let work = Work {
                    bytes: weights * format.block_bytes() as u64 / format.block_len() as u64
                        + bytes * rows as u64,
                    operations: 2 * weights * rows as u64,
                    kind: Kind::Bytes,
                };
                self.time(&format!("LoRA rank 16 {name}/{text}"), work, || {
                    running.step(adapted(rows));
                });
            }
        }
    }

    fn attention(&mut self) {
        let subject = graphs::attention();
        let mut running = self.bound(&subject, 0);
        check(&subject, &mut running, PROMPT, 0.9999);
        let (heads, kv_heads) = (u64::from(graphs::HEADS), u64::from(graphs::KV_HEADS));
        let lanes = u64::from(graphs::HEAD_DIM);
        // A pair of a query and a key: two dot products of a head's lanes.
        let pair = 4 * heads * lanes;
        let rows = PROMPT as u64;
        let work = Work {
            bytes: 4 * rows * kv_heads * lanes,
            operations: pair * rows * (rows + 1) / 2,
            kind: Kind::Floats,
        };
        self.time("attention/512 rows", work, || {
            running.step(Rows::of_one(PROMPT, 0));
        });
        running.fill(DEPTH);
        let work = Work {
            bytes: 4 * DEPTH as u64 * kv_heads * lanes,
            operations: pair * DEPTH as u64,
            kind: Kind::Floats,
        };
        self.time("attention/1 row at 4096", work, || {
            running.step(Rows::of_one(1, DEPTH));
        });
    }

    fn norms(&mut self) {
        let subject = graphs::norms();
        let mut running = self.bound(&subject, 0);
        check(&subject, &mut running, NORM_ROWS, 0.99999);
        let values = (graphs::NORMS * NORM_ROWS) as u64 * u64::from(graphs::NORM_WIDTH);
        let work = Work {
            bytes: 8 * values,
            operations: 4 * values,
            kind: Kind::Floats,
        };
        self.time("norm/64 rows of 4096", work, || {
            running.step(Rows::of_one(NORM_ROWS, 0));
        });
    }
}

fn main() {
    // `cargo test --benches` runs every bench, to see that it builds.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let device = Device::Cpu(CpuDevice::new(Some(threads)));
    let bounds = Bounds {
        threads,
        bandwidth: bandwidth::read(threads),
        peak: peak::measure(threads),
    };
    let mut bench = Bench {
        criterion: Criterion::default().configure_from_args(),
        device,
        report: Report::new(bounds),
    };
    bench.products(Format::Blocks(&formats::Q4_0), Kind::Bytes, 0.98);
    bench.products(Format::Blocks(&formats::Q8_0), Kind::Bytes, 0.98);
    bench.products(Format::Bf16, Kind::Floats, 0.9999);
    bench.adapters();
    bench.attention();
    bench.norms();
    bench.criterion.final_summary();
    bench.report.finish();
}
