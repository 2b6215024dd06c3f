//! The engine: a model bound to a device, shared by sessions.

use crate::adapters::{AdapterBudget, AdapterSet, Roster};
use crate::bound::Bound;
use crate::core::Core;
use crate::session::Session;
use crate::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use rusty_adapters::Cache;
use rusty_backend::DeviceChoice;
use rusty_compiler::{KvFormat, MemoryUse};
use rusty_graph::Graph;
use rusty_loader::meta::keys;
use rusty_loader::text::{ChatTemplate, Tokenizer};
use rusty_loader::{Meta, ModelFile};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where it runs.
    pub device: DeviceChoice,
    /// Threads of the CPU device; none: all cores.
    pub threads: Option<usize>,
    /// Bytes of a GPU's memory to use at most; none: all that is free. Weights that do not fit beside the context stream
    /// from the file in each step, the last layers first; so a model may be larger than the memory.
    pub gpu_memory: Option<u64>,
    /// Whether floats, and on GPUs weights of block formats, are multiplied in single precision only. Without, few rows of block formats round inputs to bytes with a scale for each
    /// sixteen where the GPU has packed products, more rows round inputs and weights to bf16 (those of weights in F16 to half precision) and queries to what keys are stored in (with what blocks of keys and values stand
    /// for, to half precision) where it has matrix units, or weights of block formats to half precision where its kernels are WGSL and it has that. With, products are slower, and rows hardly depend on how many
    /// there are. A CPU with AVX-512 BF16 rounds inputs of weights in BF16 to bf16 without it; those of block formats are bytes with and
    /// without.
    pub single_precision: bool,
    /// Whether choices among a GPU's kernels are measured where a model's shapes first run on it, which takes seconds once. Not where
    /// kernels come from a package, which has no others.
    pub autotune: bool,
    /// Storage of keys and values.
    pub kv: KvFormat,
    /// Tokens of context per session; none: the model's, at most 4096.
    pub context: Option<usize>,
    /// Sessions with a full context that fit the KV pool at once.
    pub sessions: usize,
    /// Slots of the executable: adapters, or mixtures of them, that may be at work in one step. Answers that run with more take
    /// turns.
    pub adapter_slots: u32,
    /// Bytes that adapters may hold.
    pub adapter_budget: AdapterBudget,
    /// Bytes of a GPU's memory, one buffer at most, that weights leave free for adapters that come later: where both do not fit,
    /// weights stream, as many as may.
    pub adapter_room: u64,
    /// Where prepared adapters are kept; none: they are prepared each time.
    pub adapter_cache: Option<Cache>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Auto,
            threads: None,
            gpu_memory: None,
            single_precision: false,
            autotune: true,
            kv: KvFormat::F16,
            context: None,
            sessions: 1,
            adapter_slots: 16,
            adapter_budget: AdapterBudget::default(),
            adapter_room: 0,
            adapter_cache: None,
        }
    }
}

/// A loaded model. Cheap to clone; all clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

fn tokenizer_of(file: &dyn ModelFile) -> std::result::Result<Tokenizer, String> {
    Tokenizer::from_model(file).map_err(|error| error.to_string())
}

struct Shared {
    core: Mutex<Core>,
    roster: Roster,
    copies_tables: bool,
    graph: Arc<Graph>,
    base: OnceLock<Arc<dyn ModelFile>>,
    adapter_cache: Option<Cache>,
    /// The file's tokenizer, or why it is of no use.
    tokenizer: std::result::Result<Tokenizer, String>,
    /// The file's chat template, or what is wrong with it.
    template: Option<std::result::Result<ChatTemplate, String>>,
    context: usize,
    label: String,
    device: String,
    load_s: f64,
}

impl Engine {
    /// Loads a model: states its graph, checks a sample of its weights, compiles and binds it.
    ///
    /// # Errors
    /// Names the file, tensor, option or device that is wrong.
    pub fn load(file: &dyn ModelFile, options: &EngineOptions) -> Result<Engine> {
        Self::load_observed(file, options, &|_, _| {})
    }

    /// As [`Engine::load`]; `tuning` is told how many of how many measurements are made while kernels are chosen.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load_observed(
        file: &dyn ModelFile,
        options: &EngineOptions,
        tuning: &dyn Fn(u64, u64),
    ) -> Result<Engine> {
        let start = Instant::now();
        let graph = Arc::new(rusty_graph::arch::build(file)?);
        // A vocabulary takes about as long as all the rest.
        let (bound, tokenizer) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| tokenizer_of(file));
            (Bound::new(file, &graph, options, tuning), tokenizer.join())
        });
        let Bound { core, device } = bound?;
        let tokenizer = tokenizer.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let template = file.meta(keys::CHAT_TEMPLATE).and_then(Meta::as_str);
        let template = template
            .map(|source| ChatTemplate::new(file.label(), source).map_err(|e| e.to_string()));
        let shared = Shared {
            context: core.context,
            copies_tables: core.executable.copies_tables(),
            core: Mutex::new(core),
            roster: Roster::default(),
            graph,
            base: OnceLock::new(),
            adapter_cache: options.adapter_cache.clone(),
            tokenizer,
            template,
            label: file.label().to_string(),
            device,
            load_s: start.elapsed().as_secs_f64(),
        };
        Ok(Engine {
            shared: Arc::new(shared),
        })
    }

    /// Keeps a model's file at hand for preparing adapters that are relative to its weights (DoRA, replaced norms and
    /// biases). Only the first call counts.
    pub fn keep_base(&self, file: Arc<dyn ModelFile>) {
        // A second file would be the same model.
        let _ = self.shared.base.set(file);
    }

    /// The file that [`Engine::keep_base`] kept.
    pub(crate) fn base(&self) -> Option<&Arc<dyn ModelFile>> {
        self.shared.base.get()
    }

    /// Where prepared adapters are kept.
    pub(crate) fn adapter_cache(&self) -> Option<&Cache> {
        self.shared.adapter_cache.as_ref()
    }

    /// The network, shared.
    pub(crate) fn shared_graph(&self) -> &Arc<Graph> {
        &self.shared.graph
    }

    /// A new session with an empty cache.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// Refuses ids that have no embedding: one row that a step refuses would end everybody's answers.
    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.vocab();
        match tokens.iter().find(|t| **t >= vocab) {
            Some(t) => Err(Error::Request(format!(
                "token {t} is outside the model's vocabulary of {vocab}"
            ))),
            None => Ok(()),
        }
    }

    /// Runs a few tokens and checks that their logits are finite and not all alike.
    ///
    /// # Errors
    /// [`Error::Check`] with what was found.
    pub fn check(&self) -> Result<()> {
        let count = self.shared.context.min(8) as u32;
        let tokens: Vec<u32> = (0..count).map(|i| i * 7 % self.vocab()).collect();
        let logits = self.logits(&tokens, AdapterSet::BASE)?;
        let failed = |reason: &str| Error::Check {
            model: self.shared.label.clone(),
            reason: reason.into(),
        };
        if logits.iter().any(|l| !l.is_finite()) {
            return Err(failed("logits are not finite"));
        }
        let row = &logits[..self.vocab() as usize];
        if row.iter().all(|l| *l == row[0]) {
            return Err(failed("all logits are alike"));
        }
        Ok(())
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        &self.shared.graph
    }

    /// The tokenizer, where the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.shared.tokenizer.as_ref().ok()
    }

    /// The tokenizer of a model that texts are for.
    ///
    /// # Errors
    /// The model has none, or one that cannot be read: token ids are of use all the same.
    pub fn text_tokenizer(&self) -> Result<&Tokenizer> {
        let missing = |reason: &String| {
            let label = &self.shared.label;
            Error::Request(format!(
                "{label} takes token ids only, without a tokenizer that can be read: {reason}"
            ))
        };
        self.shared.tokenizer.as_ref().map_err(missing)
    }

    /// Whether the model's file states a chat template.
    pub fn has_template(&self) -> bool {
        self.shared.template.is_some()
    }

    /// The chat template.
    ///
    /// # Errors
    /// The model has none, or one that is not valid: plain text and token ids are of use all the same.
    pub fn template(&self) -> Result<&ChatTemplate> {
        match &self.shared.template {
            Some(template) => template.as_ref().map_err(|e| Error::Request(e.clone())),
            None => Err(Error::Request(
                "the model has no chat template; give the prompt as plain text".into(),
            )),
        }
    }

    /// Tokens of context per session.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// Entries of the vocabulary.
    pub fn vocab(&self) -> u32 {
        self.shared.graph.vocab
    }

    /// What the model is called.
    pub fn label(&self) -> &str {
        &self.shared.label
    }

    /// What it runs on.
    pub fn device(&self) -> &str {
        &self.shared.device
    }

    /// Seconds that loading took.
    pub fn load_s(&self) -> f64 {
        self.shared.load_s
    }

    /// Bytes held, by owner.
    pub fn memory(&self) -> MemoryUse {
        self.core().executable.memory()
    }

    /// Kernels that were compiled for a GPU while loading; steps and adapters add none.
    pub fn compiled_kernels(&self) -> usize {
        self.core().executable.compiled_kernels()
    }

    /// KV pages free and in all.
    pub fn pages(&self) -> (usize, usize) {
        let core = self.core();
        (core.pool.free(), core.pool.total())
    }

    /// Which adapters are attached.
    pub(crate) fn roster(&self) -> &Roster {
        &self.shared.roster
    }

    /// Whether slots are a device's own copies of tables.
    pub(crate) fn copies_tables(&self) -> bool {
        self.shared.copies_tables
    }

    /// The core, locked. A panic in one session's thread does not take the others down: the lock knows no poison.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.brought_up(self.shared.core.lock())
    }

    /// The same where nobody has it.
    pub(crate) fn try_core(&self) -> Option<MutexGuard<'_, Core>> {
        let core = self.shared.core.try_lock()?;
        Some(self.brought_up(core))
    }

    /// The core, without the adapters that went since somebody had it, and with those that came.
    fn brought_up<'a>(&self, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        let changes = self.shared.roster.changes();
        for id in changes.departures {
            core.dismiss(id);
        }
        for arrival in changes.arrivals {
            core.admit(arrival);
        }
        core
    }
}
