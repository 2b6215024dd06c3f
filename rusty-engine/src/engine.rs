//! The engine: a model bound to a device, shared by sessions.

use crate::core::Core;
use crate::session::Session;
use crate::{Error, Result};
use rusty_backend::{Device, DeviceChoice};
use rusty_compiler::{
    BindOptions, Executable, KvFormat, MemoryUse, Plan, RowResult, Sequence, SlotData, SlotId,
    Step, Want,
};
use rusty_graph::Graph;
use rusty_loader::meta::keys;
use rusty_loader::text::{ChatTemplate, Tokenizer};
use rusty_loader::{Meta, ModelFile};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where it runs.
    pub device: DeviceChoice,
    /// Threads of the CPU device; none: all cores.
    pub threads: Option<usize>,
    /// Storage of keys and values.
    pub kv: KvFormat,
    /// Tokens of context per session; none: the model's, at most 4096.
    pub context: Option<usize>,
    /// Sessions with a full context that fit the KV pool at once.
    pub sessions: usize,
    /// Adapters that may be attached at once.
    pub adapters: u32,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Auto,
            threads: None,
            kv: KvFormat::F16,
            context: None,
            sessions: 1,
            adapters: 8,
        }
    }
}

/// Context where nothing else is asked for.
const DEFAULT_CONTEXT: usize = 4096;

/// A loaded model. Cheap to clone; all clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    core: Mutex<Core>,
    graph: Graph,
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
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
        let start = Instant::now();
        let graph = rusty_graph::arch::build(file)?;
        rusty_loader::integrity::verify(file)?;
        let device = Device::open(&options.device, options.threads)?;
        let plan = rusty_compiler::compile(&graph, device.target())?;
        let context = context(&plan, options, file.label())?;
        let pages = BindOptions::pages_for(context)
            .saturating_mul(u32::try_from(options.sessions.max(1)).unwrap_or(u32::MAX));
        let bind = BindOptions {
            pages,
            kv: options.kv,
            slots: options.adapters,
        };
        let (rows, outputs) = (plan.row_budget(), plan.output_budget());
        let executable = rusty_compiler::bind(plan, file, &device, &bind)?;
        let core = Core::new(executable, pages, rows, outputs, options.adapters);
        let tokenizer = match Tokenizer::from_model(file) {
            Ok(tokenizer) => Some(tokenizer),
            Err(error) => {
                tracing::info!("no tokenizer: {error}");
                None
            }
        };
        let template = match file.meta(keys::CHAT_TEMPLATE).and_then(Meta::as_str) {
            Some(source) => Some(ChatTemplate::new(file.label(), source)?),
            None => None,
        };
        let shared = Shared {
            core: Mutex::new(core),
            graph,
            tokenizer,
            template,
            context,
            label: file.label().to_string(),
            device: device.to_string(),
            load_s: start.elapsed().as_secs_f64(),
        };
        Ok(Engine {
            shared: Arc::new(shared),
        })
    }

    /// An engine over any executable, without text: for tests and for programs with token ids of their own.
    pub fn with_executable(
        executable: Box<dyn Executable>,
        graph: Graph,
        bind: &BindOptions,
        context: usize,
        row_budget: usize,
    ) -> Engine {
        let outputs = row_budget.min(graph.symbols[1].max as usize);
        let core = Core::new(executable, bind.pages, row_budget, outputs, bind.slots);
        let shared = Shared {
            core: Mutex::new(core),
            label: graph.arch.clone(),
            graph,
            tokenizer: None,
            template: None,
            context,
            device: String::new(),
            load_s: 0.0,
        };
        Engine {
            shared: Arc::new(shared),
        }
    }

    /// A new session with an empty cache.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// Attaches an adapter to a free slot.
    ///
    /// # Errors
    /// All slots are in use, or the adapter does not fit.
    pub fn attach(&self, adapter: SlotData) -> Result<SlotId> {
        let mut core = self.core();
        let free = core.slots.iter().position(Option::is_none).ok_or_else(|| {
            let slots = core.slots.len();
            Error::Request(format!(
                "all {slots} adapter slots are in use; detach one or load with more"
            ))
        })?;
        let slot = SlotId(free as u32 + 1);
        let name = adapter.name.clone();
        core.executable.attach(slot, Arc::new(adapter))?;
        core.slots[free] = Some(name);
        Ok(slot)
    }

    /// Detaches the adapter of a slot.
    ///
    /// # Errors
    /// A session still uses it, or the slot is empty.
    pub fn detach(&self, slot: SlotId) -> Result<()> {
        let mut core = self.core();
        let index = (slot.0 as usize)
            .checked_sub(1)
            .filter(|i| core.slots.get(*i).is_some_and(Option::is_some));
        let Some(index) = index else {
            return Err(Error::Request(format!(
                "no adapter is attached to slot {}",
                slot.0
            )));
        };
        if core.sequences.values().any(|s| s.slot == slot) {
            return Err(Error::Request(format!(
                "a session still uses the adapter in slot {}",
                slot.0
            )));
        }
        core.executable.detach(slot)?;
        core.slots[index] = None;
        Ok(())
    }

    /// The logits of every position of `tokens`, `[tokens, vocab]` row by row.
    ///
    /// # Errors
    /// The tokens do not fit the context or the vocabulary, or the cache is full.
    pub fn logits(&self, tokens: &[u32], slot: SlotId) -> Result<Vec<f32>> {
        if tokens.is_empty() || tokens.len() > self.shared.context {
            return Err(Error::ContextFull {
                tokens: tokens.len(),
                context: self.shared.context,
            });
        }
        let mut core = self.core();
        let pages = core
            .pool
            .take(BindOptions::pages_for(tokens.len()) as usize)?;
        let result = all_logits(&mut core, tokens, &pages, slot);
        core.pool.release(pages);
        result
    }

    /// Runs a few tokens and checks that their logits are finite and not all alike.
    ///
    /// # Errors
    /// [`Error::Check`] with what was found.
    pub fn check(&self) -> Result<()> {
        let count = self.shared.context.min(8) as u32;
        let tokens: Vec<u32> = (0..count).map(|i| i * 7 % self.vocab()).collect();
        let logits = self.logits(&tokens, SlotId::BASE)?;
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
        self.shared.tokenizer.as_ref()
    }

    /// The chat template, where the model has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.shared.template.as_ref()
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

    /// KV pages free and in all.
    pub fn pages(&self) -> (usize, usize) {
        let core = self.core();
        (core.pool.free(), core.pool.total())
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // A panic in one session's thread must not take the others down.
        self.shared
            .core
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn context(plan: &Plan, options: &EngineOptions, label: &str) -> Result<usize> {
    let limit = plan.context as usize;
    match options.context {
        None => Ok(limit.min(DEFAULT_CONTEXT)),
        Some(0) => Err(Error::Request("a context of 0 tokens holds nothing".into())),
        Some(asked) => {
            if asked > limit {
                tracing::warn!(
                    "{label}: a context of {asked} tokens is beyond the trained {limit}"
                );
            }
            Ok(asked)
        }
    }
}

fn all_logits(core: &mut Core, tokens: &[u32], pages: &[u32], slot: SlotId) -> Result<Vec<f32>> {
    let mut logits = Vec::new();
    let chunk = core.row_budget.min(core.output_budget);
    for (index, part) in tokens.chunks(chunk).enumerate() {
        let first = (index * chunk) as u32;
        let positions: Vec<u32> = (first..first + part.len() as u32).collect();
        let output = core.executable.run(&Step {
            tokens: part,
            positions: &positions,
            sequence_of: &vec![0; part.len()],
            sequences: &[Sequence {
                pages,
                rope_length: tokens.len() as u32,
            }],
            slots: &vec![slot; part.len()],
            wants: &vec![Want::Logits; part.len()],
        })?;
        for (_, result) in output.results {
            if let RowResult::Logits(row) = result {
                logits.extend(row);
            }
        }
    }
    Ok(logits)
}
