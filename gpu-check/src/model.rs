//! A model of a real shape with random weights: how fast it is. It is bound as an engine binds it: without kernels
//! that the device does not take or that go wrong there, of which rows tell.

use anyhow::{Context, Result};
use rusty_backend::Device;
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::gpu::tuner::{self, Effort};
use rusty_compiler::{
    BindOptions, Error, Executable, KvFormat, PAGE_TOKENS, SlotId, bind_gpu_tested, replace_wrong,
};
use rusty_engine::throughput::{Workload, measure};
use rusty_loader::ModelFile;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::outcome::{Adapted, Facts};

/// Rank of the adapters.
const RANK: u32 = 16;
/// What is added to a test's name where kernels are as they are guessed.
pub const GUESSED: &str = "as guessed";
/// Time for which choices among kernels are measured.
const TUNING: Duration = Duration::from_secs(8);

/// A model, and what it is measured at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Model {
    pub shape: String,
    pub format: String,
    pub device: String,
    /// Format of keys and values.
    pub kv: String,
    /// Bytes of the device's memory to use at most.
    pub memory: Option<u64>,
    /// Adapters that are attached.
    pub adapters: u32,
    /// Whether their tables are bytes; else halves.
    pub bytes: bool,
    /// Whether it is also measured with kernels as they are guessed.
    pub guesses: bool,
    pub repetitions: usize,
    pub works: Vec<Work>,
}

/// One workload.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Work {
    pub prompt: usize,
    pub generate: usize,
    pub depth: usize,
    pub batch: usize,
    /// Adapters that rows wear, in turn.
    pub adapters: usize,
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The test, and under which circumstances.
    pub test: String,
    /// Tokens per second, the best of the repetitions.
    pub rate: f64,
    pub facts: Facts,
    /// Ways to run kernels that the device did not take or that went wrong there.
    pub without: Vec<String>,
}

impl Work {
    fn load(&self) -> Workload {
        Workload {
            prompt: self.prompt,
            generate: self.generate,
            depth: self.depth,
            batch: self.batch,
            adapters: self.adapters,
        }
    }
}

impl Model {
    /// Its shape, its format and what else is special about it.
    pub fn name(&self) -> String {
        let adapters = self.adapters as usize;
        format!("{} {}{}", self.shape, self.format, self.notes(adapters))
    }

    /// Under which circumstances rows are measured of which so many wear adapters.
    fn notes(&self, adapters: usize) -> String {
        let mut notes = match (adapters, self.bytes) {
            (0, _) => String::new(),
            (n, false) => format!(" {n} adapters"),
            (n, true) => format!(" {n} int8 adapters"),
        };
        if self.kv != KvFormat::default().name() {
            notes += &format!(" {} cache", self.kv);
        }
        if let Some(memory) = self.memory {
            notes += &format!(" in {:.1} GB", memory as f64 / 1e9);
        }
        notes
    }
}

/// Measures a model, and tells each row as soon as it is known.
pub fn measured(job: &Model, tell: &mut dyn FnMut(Row) -> Result<()>) -> Result<()> {
    // What the device has room for it makes in its own memory.
    let file = rusty_loader::random::promised(&job.shape, &job.format)?;
    let device = Device::open_within(&job.device.parse()?, None, job.memory)?;
    let gpu = device.gpu().context("is no GPU")?;
    let graph = rusty_graph::arch::build(&*file)?;
    let plan = rusty_compiler::compile(&graph, gpu.target())?;
    let kv = KvFormat::ALL.into_iter().find(|kv| kv.name() == job.kv);
    let pages = job.works.iter().map(|work| work.load().pages()).max();
    let options = BindOptions {
        pages: pages.context("no work")?,
        kv: kv.context("no format of keys and values")?,
        slots: job.adapters,
    };
    let executable = bind_gpu_tested(plan, &*file, gpu, &options)?;
    let mut bound = Bound {
        job,
        executable,
        options,
        table_bytes: 0,
        base: vec![],
    };
    if job.guesses {
        bound.works(&format!(" {GUESSED}"), tell)?;
    }
    bound.tune(&*file)?;
    drop(file);
    bound.attach()?;
    bound.works("", tell)
}

/// A model on its device.
struct Bound<'a> {
    job: &'a Model,
    executable: GpuExecutable,
    options: BindOptions,
    /// Bytes of one adapter's tables.
    table_bytes: u64,
    /// Sequences, and tokens per second that they decode without adapters.
    base: Vec<(usize, f64)>,
}

impl Bound<'_> {
    /// Takes what an earlier process found about kernels, or measures choices among them; those that are then
    /// chosen are compared with the oracle, too.
    fn tune(&mut self, file: &dyn ModelFile) -> Result<()> {
        let effort = Effort {
            limit: TUNING,
            ..Effort::default()
        };
        let start = Instant::now();
        match tuner::kept(self.executable.plan(), &self.options, &effort) {
            Some(tuning) => match self.executable.retune(tuning) {
                Err(error @ (Error::Refused { .. } | Error::Target { .. })) => {
                    eprintln!("not tuned as before: {error}");
                }
                tuned => tuned?,
            },
            None => tuner::tune(&mut self.executable, &effort, &|_, _| {})?,
        }
        eprintln!("tuned in {:.1} s", start.elapsed().as_secs_f64());
        let start = Instant::now();
        replace_wrong(&mut self.executable, file)?;
        eprintln!("tested in {:.1} s", start.elapsed().as_secs_f64());
        Ok(())
    }

    fn attach(&mut self) -> Result<()> {
        let sites = self.executable.plan().sites.clone();
        let precision = match self.job.bytes {
            true => rusty_adapters::Precision::Int8,
            false => rusty_adapters::Precision::Stored,
        };
        for slot in 1..=self.job.adapters {
            let name = format!("random-{slot}");
            let adapter = rusty_adapters::random(&name, &sites, RANK, u64::from(slot), precision);
            self.table_bytes = adapter.bytes() as u64;
            self.executable.attach(SlotId(slot), Arc::new(adapter))?;
        }
        Ok(())
    }

    fn works(&mut self, note: &str, tell: &mut dyn FnMut(Row) -> Result<()>) -> Result<()> {
        let job = self.job;
        let plan = self.executable.plan();
        let (rows, vocab) = (plan.row_budget(), plan.vocab);
        let without: Vec<String> = plan.excluded.iter().map(ToString::to_string).collect();
        for work in &job.works {
            let load = work.load();
            let results = measure(&mut self.executable, rows, vocab, &load, job.repetitions)?;
            for result in results {
                let rate = result.samples.iter().copied().fold(0.0, f64::max);
                let facts = match result.test.starts_with("tg") {
                    true => self.facts(work, rate),
                    false => Facts::default(),
                };
                let notes = job.notes(work.adapters);
                let test = format!("{}{notes}{note}", result.test);
                let without = without.clone();
                tell(Row {
                    test,
                    rate,
                    facts,
                    without,
                })?;
            }
        }
        Ok(())
    }

    /// What decoding at a rate is held against.
    fn facts(&mut self, work: &Work, rate: f64) -> Facts {
        let held = self.executable.memory();
        let streamed = (held.mapped_weights > 0).then_some(held.mapped_weights);
        let plan = self.executable.plan();
        let own = work.adapters == 0;
        if own {
            self.base.push((work.batch, rate));
        }
        let alone = own && work.batch == 1 && streamed.is_none();
        let room = u64::from(self.options.pages) * PAGE_TOKENS as u64;
        // On average half of what is generated is in the cache.
        let cached = (work.depth + work.generate / 2) as u64;
        let bytes = plan.bytes_per_token() + held.kv * cached / room.max(1);
        let weights = (plan.bytes_per_token() - plan.activation_bytes()) as f64;
        let tables = self.table_bytes as f64 * work.adapters.min(work.batch) as f64;
        let base = self.base.iter().find(|(batch, _)| *batch == work.batch);
        let adapted = base.filter(|_| !own).map(|(_, base)| Adapted {
            base: *base,
            bound: weights / (weights + tables),
        });
        Facts {
            per_token: alone.then(|| (bytes, plan.dispatches(1))),
            adapted,
            streamed,
        }
    }
}
