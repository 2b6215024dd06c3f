//! Kernels one by one: a step of a graph that has one kind of kernel takes as long as that kind takes. Answers are checked
//! before anything is timed.

mod deltas;
mod graphs;
mod peak;
mod running;

pub use peak::Peak;

use crate::{bandwidth, copies, cosine, middle};
use criterion::{Criterion, Throughput};
use graphs::Subject;
use running::{Rows, Running, check};
use rusty_backend::Device;
use rusty_compiler::KvFormat;
use rusty_loader::{Format, formats};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Rows of a prompt.
const PROMPT: usize = 512;
const BATCH: usize = 16;
const SAMPLES: usize = 10;
/// Pairs of products that are compared with the interpreter's, which decodes weights on one thread; all pairs take the
/// same kernels.
const CHECKED: usize = 1;
/// What a row that is multiplied beside others may differ from the same row alone on devices that round products of many
/// rows otherwise: one less the cosine.
const ROUNDED: f64 = 1e-3;

/// How large kernels are: what keeps a CPU busy is over on a GPU before a step's fixed costs are.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Inputs of every other product, outputs of those between.
    pub width: u32,
    /// Outputs of the former, inputs of the latter.
    pub inner: u32,
    /// Pairs of products, together larger than caches.
    pub pairs: usize,
    /// Longest sequence.
    pub context: u32,
    /// Tokens in front of the row that attends alone.
    pub depth: usize,
    /// Rows of norms.
    pub norm_rows: usize,
    /// Seconds for which a kernel is timed, after a quarter of that.
    pub seconds: f64,
}

impl Sizes {
    /// For a CPU: Qwen3-0.6B's feed-forward network, 170 MB in Q4_0.
    pub const CPU: Self = Self {
        width: 1024,
        inner: 3072,
        pairs: 48,
        context: 8192,
        depth: 4096,
        norm_rows: 64,
        seconds: 2.0,
    };
    /// For a GPU: Llama-3-8B's, 1.1 GB in Q4_0, and 540 MB of keys and values.
    pub const GPU: Self = Self {
        width: 4096,
        inner: 14_336,
        pairs: 16,
        context: 132_096,
        depth: 131_072,
        norm_rows: PROMPT,
        seconds: 0.5,
    };
    /// To see that it runs.
    pub const SMALL: Self = Self {
        width: 256,
        inner: 512,
        pairs: 2,
        context: 1024,
        depth: 512,
        norm_rows: 4,
        seconds: 0.02,
    };

    /// Those for a kind of device.
    pub fn of(device: &Device) -> Self {
        match device {
            Device::Cpu(_) => Self::CPU,
            Device::Gpu(_) => Self::GPU,
        }
    }

    /// Weights of all products.
    fn weights(&self) -> u64 {
        2 * self.pairs as u64 * u64::from(self.width) * u64::from(self.inner)
    }
}

/// What a device reaches.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes per second.
    pub bandwidth: f64,
    /// Operations per second, where that is known.
    pub peak: Option<Peak>,
}

impl Bounds {
    /// Of a CPU what loops reach, of a GPU what copies do.
    ///
    /// # Errors
    /// Those of the device.
    pub fn of(device: &Device) -> rusty_backend::Result<Self> {
        let threads = device.target().threads;
        Ok(match device {
            Device::Cpu(_) => Self {
                bandwidth: bandwidth::read(threads),
                peak: peak::measure(threads, device.target().isa),
            },
            Device::Gpu(gpu) => Self {
                bandwidth: copies::inside(&**gpu)?,
                peak: None,
            },
        })
    }
}

/// What operations work on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Floats,
    Brains,
    Bytes,
}

/// What a kernel has to read and to compute.
#[derive(Clone, Copy)]
struct Work {
    bytes: u64,
    operations: u64,
    kind: Kind,
}

/// A kernel's time beside its bounds, in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What it does, on how many rows, in which format.
    pub kernel: String,
    /// The middle of some samples.
    pub seconds: f64,
    /// What its bytes take at least.
    pub bytes: f64,
    /// What its operations take at least, where that is known.
    pub operations: Option<f64>,
    /// How many operations they are.
    pub count: u64,
}

impl Row {
    fn new(kernel: String, work: Work, seconds: f64, bounds: &Bounds) -> Self {
        let peak = bounds.peak.map(|p| match work.kind {
            Kind::Floats => p.floats,
            Kind::Brains => p.brains,
            Kind::Bytes => p.bytes,
        });
        Self {
            kernel,
            seconds,
            bytes: work.bytes as f64 / bounds.bandwidth,
            operations: peak.map(|peak| work.operations as f64 / peak),
            count: work.operations,
        }
    }

    /// The part of the time that the longer of the known bounds is.
    pub fn share(&self) -> f64 {
        self.operations.map_or(self.bytes, |o| o.max(self.bytes)) / self.seconds
    }

    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.count as f64 / self.seconds
    }
}

/// Rows of a whole run; fewer were filtered.
pub const ALL: usize = 21;

/// Measures all kernels on a device as its plan guesses them, and tells each as soon as it is known. `criterion` has the filters.
///
/// # Panics
/// Where an answer is wrong or the device fails: nothing can be told of its speed then.
pub fn measure(
    device: Device,
    bounds: Bounds,
    sizes: Sizes,
    criterion: Criterion,
    told: &mut dyn FnMut(Row),
) {
    let mut bench = Bench {
        criterion,
        device,
        bounds,
        sizes,
        told,
    };
    bench.products(Format::Blocks(&formats::Q4_0), Kind::Bytes, 0.98);
    bench.products(Format::Blocks(&formats::Q8_0), Kind::Bytes, 0.98);
    bench.products(Format::Blocks(&formats::Q4_K), Kind::Bytes, 0.98);
    bench.products(Format::Bf16, Kind::Brains, 0.9999);
    bench.adapters();
    bench.attention(KvFormat::F16, 0.9999);
    bench.attention(KvFormat::Q8_0, 0.999);
    bench.norms();
    bench.criterion.final_summary();
}

struct Bench<'a> {
    criterion: Criterion,
    device: Device,
    bounds: Bounds,
    sizes: Sizes,
    told: &'a mut dyn FnMut(Row),
}

impl Bench<'_> {
    /// Times `run`, which does `work`.
    fn time(&mut self, name: &str, work: Work, mut run: impl FnMut()) {
        let mut samples: Vec<f64> = vec![];
        let (group, name) = name.split_once('/').expect("a group and a name");
        let timed = Duration::from_secs_f64(self.sizes.seconds);
        let mut criterion = self.criterion.benchmark_group(group);
        criterion
            .throughput(Throughput::Bytes(work.bytes))
            .sample_size(SAMPLES)
            .measurement_time(timed)
            .warm_up_time(timed / 4);
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
            (self.told)(Row::new(name, work, middle(samples), &self.bounds));
        }
    }

    fn bound(&self, subject: &Subject, slots: u32) -> Running {
        Running::new(subject, &self.device, slots, KvFormat::F16)
    }

    /// Bytes of so many weights where products read them: CPUs hold BF16 in twelve bits a value.
    fn stored(&self, format: Format, weights: u64) -> u64 {
        match (&self.device, format) {
            (Device::Cpu(_), Format::Bf16) => weights * 12 / 8,
            _ => weights * format.block_bytes() as u64 / format.block_len() as u64,
        }
    }

    /// Whether a row that was multiplied beside others is as it is alone.
    fn alike(&self, beside: &[f32], alone: &[f32]) -> bool {
        match self.device {
            Device::Cpu(_) => beside == alone,
            Device::Gpu(_) => cosine(beside, alone) > 1.0 - ROUNDED,
        }
    }

    fn products(&mut self, format: Format, kind: Kind, least: f64) {
        let few = Sizes {
            pairs: self.sizes.pairs.min(CHECKED),
            ..self.sizes
        };
        let checked = graphs::products(format, &few);
        check(&checked, &mut self.bound(&checked, 0), 1, least);
        drop(checked);
        let subject = graphs::products(format, &self.sizes);
        let mut running = self.bound(&subject, 0);
        drop(subject);
        let last = running.step(Rows::of_one(PROMPT, 0));
        let alone = running.step(Rows::of_one(1, PROMPT - 1));
        assert!(self.alike(&last, &alone), "a row depends on its neighbours");
        let weights = self.sizes.weights();
        for (name, rows) in [
            ("gemv", 1),
            ("gemm 16 rows", BATCH),
            ("gemm 512 rows", PROMPT),
        ] {
            let work = Work {
                bytes: self.stored(format, weights),
                operations: 2 * weights * rows as u64,
                kind,
            };
            let name = format!("{name}/{}", format.name());
            self.time(&name, work, || {
                running.step(Rows::of_one(rows, 0));
            });
        }
    }

    /// Attention over keys and values of a format: the last of a prompt's rows is near the interpreter's, with and without the others.
    fn attention(&mut self, kv: KvFormat, least: f64) {
        let subject = graphs::attention(&self.sizes);
        let mut running = Running::new(&subject, &self.device, 0, kv);
        check(&subject, &mut running, PROMPT, least);
        let last = running.step(Rows::of_one(PROMPT, 0));
        let alone = running.step(Rows::of_one(1, PROMPT - 1));
        assert!(cosine(&last, &alone) >= least, "a row depends on its step");
        let (heads, lanes) = (u64::from(graphs::HEADS), u64::from(graphs::HEAD_DIM));
        // A pair of a query and a key: two dot products of a head's lanes.
        let pair = 4 * heads * lanes;
        let rows = PROMPT as u64;
        let work = Work {
            bytes: rows * running.kv_bytes(),
            operations: pair * rows * (rows + 1) / 2,
            kind: Kind::Floats,
        };
        let name = kv.name();
        self.time(&format!("attention/512 rows, {name}"), work, || {
            running.step(Rows::of_one(PROMPT, 0));
        });
        let depth = self.sizes.depth;
        running.fill(depth);
        let work = Work {
            bytes: depth as u64 * running.kv_bytes(),
            operations: pair * depth as u64,
            kind: Kind::Floats,
        };
        self.time(&format!("attention/1 row at {depth}, {name}"), work, || {
            running.step(Rows::of_one(1, depth));
        });
    }

    fn norms(&mut self) {
        let rows = self.sizes.norm_rows;
        let subject = graphs::norms(&self.sizes);
        let mut running = self.bound(&subject, 0);
        check(&subject, &mut running, rows, 0.99999);
        let values = (graphs::NORMS * rows) as u64 * u64::from(graphs::NORM_WIDTH);
        let work = Work {
            bytes: 8 * values,
            operations: 4 * values,
            kind: Kind::Floats,
        };
        self.time(&format!("norm/{rows} rows of 4096"), work, || {
            running.step(Rows::of_one(rows, 0));
        });
    }
}
