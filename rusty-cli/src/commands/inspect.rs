//! `rusty inspect`: what a model file holds and what running it needs.

use crate::args::{Inspect, RandomAdapters};
use crate::{adapter, model};
use anyhow::{Result, bail};
use rusty_adapters::Base;
use rusty_backend::Target;
use rusty_compiler::{BindOptions, KvFormat, Plan, SlotData, cpu};
use rusty_graph::RopeScaling;
use rusty_loader::ModelFile;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;

/// Context for which memory is stated where none is asked for, in tokens.
const CONTEXT: u32 = 4096;

/// Prints the facts.
pub fn run(options: &Inspect) -> Result<()> {
    let file = model::open_or_outline(options.model.as_deref(), &options.random, &options.rope)?;
    let graph = rusty_graph::arch::build(&*file)?;
    let target = Target::host_cpu();
    let plan = rusty_compiler::compile(&graph, &target)?;
    let kv: KvFormat = options.kv.into();
    if let Some(reason) = kv.refusal(&plan.kv) {
        bail!("--kv: {reason}");
    }
    let base = Base::new(&graph, &*file);
    let precision = options.adapter_precision.into();
    // Weights are read as elsewhere, and change no sizes.
    let adapters = options.adapters.iter().map(|argument| {
        let (name, _) = adapter::split(argument)?;
        adapter::prepare(name, &base, precision)
    });
    let mut adapters: Vec<SlotData> = adapters.collect::<Result<_>>()?;
    adapters.extend(random_adapters(options, &plan));
    if options.ctx == Some(0) {
        bail!("--ctx 0: a context holds at least one token");
    }
    let context = options.ctx.unwrap_or(plan.context.min(CONTEXT));
    let facts = Facts::new(&*file, &plan, (context, kv), &adapters, &target)?;
    let (tensors, memory) = (options.tensors, target.memory_bytes);
    let mut out = std::io::stdout().lock();
    if !options.json {
        return facts.print(&mut out, &*file, (&plan, memory), tensors);
    }
    let json = facts.json(&*file, (&plan, memory), tensors);
    writeln!(out, "{}", serde_json::to_string_pretty(&json)?)?;
    Ok(())
}

/// The random adapters that are asked for. A seed changes no sizes: the tables of the first are those of all.
fn random_adapters(options: &Inspect, plan: &Plan) -> Vec<SlotData> {
    let RandomAdapters { count, rank } = options.random_adapters;
    if count == 0 {
        return vec![];
    }
    let first = adapter::random(1, rank, &plan.sites, options.adapter_precision.into());
    let named = |number: usize| SlotData {
        name: adapter::random_name(number),
        ..first.clone()
    };
    (1..=count).map(named).collect()
}

/// Bytes in MiB.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 20) as f64
}

/// What a model file holds and what running it needs.
struct Facts {
    parameters: u64,
    /// Bytes in the file, and in a CPU's memory.
    weights: u64,
    held: u64,
    /// Bytes that steps work in.
    arena: u64,
    formats: BTreeMap<&'static str, (usize, u64)>,
    context: u32,
    kv: KvFormat,
    /// Name, largest rank and bytes.
    adapters: Vec<(String, u32, u64)>,
}

impl Facts {
    fn new(
        file: &dyn ModelFile,
        plan: &Plan,
        (context, kv): (u32, KvFormat),
        adapters: &[SlotData],
        target: &Target,
    ) -> Result<Self> {
        let bind = BindOptions {
            pages: BindOptions::pages_for(context as usize),
            kv,
            slots: adapters.len() as u32,
        };
        let adapter = |a: &SlotData| (a.name.clone(), a.largest_rank(), a.bytes() as u64);
        let mut facts = Facts {
            parameters: 0,
            weights: 0,
            held: cpu::weight_bytes(plan),
            arena: cpu::working_bytes(plan, file, target.threads, &bind)?,
            formats: BTreeMap::new(),
            context,
            kv,
            adapters: adapters.iter().map(adapter).collect(),
        };
        for weight in &plan.weights {
            let Some(view) = file.tensor(&weight.name) else {
                continue;
            };
            facts.parameters += view.elements() as u64;
            facts.weights += view.bytes.len() as u64;
            let entry = facts.formats.entry(view.format.name()).or_default();
            entry.0 += 1;
            entry.1 += view.bytes.len() as u64;
        }
        Ok(facts)
    }

    /// Bytes of the context's keys and values.
    fn kv_bytes(&self, plan: &Plan) -> u64 {
        u64::from(self.context) * plan.kv_bytes_per_token(self.kv)
    }

    fn adapter_bytes(&self) -> u64 {
        self.adapters.iter().map(|(_, _, bytes)| bytes).sum()
    }

    fn total(&self, plan: &Plan) -> u64 {
        self.held + self.arena + self.kv_bytes(plan) + self.adapter_bytes()
    }

    /// Prints them for people, with a list of all tensors where that is wanted.
    fn print(
        &self,
        out: &mut dyn Write,
        file: &dyn ModelFile,
        (plan, memory): (&Plan, u64),
        tensors: bool,
    ) -> Result<()> {
        writeln!(out, "{}", file.label())?;
        writeln!(out, "architecture  {}", plan.arch)?;
        writeln!(out, "layers        {}", plan.kv.len())?;
        writeln!(out, "vocabulary    {}", plan.vocab)?;
        writeln!(out, "context       {} tokens", plan.context)?;
        if self.context > plan.context {
            writeln!(
                out,
                "              {} asked for are more than it was made for",
                self.context
            )?;
        }
        for rope in &plan.ropes {
            if rope.scaling != RopeScaling::None {
                writeln!(out, "rope scaling  {}", rope.scaling)?;
            }
        }
        writeln!(out, "parameters    {:.2} M", self.parameters as f64 / 1e6)?;
        for (format, (tensors, bytes)) in &self.formats {
            writeln!(
                out,
                "  {format:<10}  {tensors} tensors, {:.1} MiB",
                mib(*bytes)
            )?;
        }
        self.print_memory(out, plan, memory)?;
        let names = file.tensor_names().into_iter().filter(|_| tensors);
        for name in names {
            if let Some(t) = file.tensor(&name) {
                writeln!(out, "{name:<40} {:<6} {:?}", t.format.name(), t.shape)?;
            }
        }
        Ok(())
    }

    /// Prints what lies in memory while the model runs, and whether all of it fits.
    fn print_memory(&self, out: &mut dyn Write, plan: &Plan, memory: u64) -> Result<()> {
        let held = match self.held == self.weights {
            true => String::new(),
            false => format!(", {:.1} MiB as CPUs hold them", mib(self.held)),
        };
        writeln!(out, "weights       {:.1} MiB{held}", mib(self.weights))?;
        writeln!(
            out,
            "KV            {:.2} MiB for {} tokens, {:.2} MiB per 1024 ({})",
            mib(self.kv_bytes(plan)),
            self.context,
            mib(plan.kv_bytes_per_token(self.kv) * 1024),
            self.kv.name()
        )?;
        writeln!(out, "arena         {:.1} MiB", mib(self.arena))?;
        for (name, rank, bytes) in &self.adapters {
            let mib = mib(*bytes);
            writeln!(out, "adapter       {name}, rank {rank}: {mib:.2} MiB")?;
        }
        if self.adapters.len() > 1 {
            let (count, mib) = (self.adapters.len(), mib(self.adapter_bytes()));
            writeln!(out, "adapters      {mib:.2} MiB, {count} of them")?;
        }
        let total = self.total(plan);
        let fits = match memory.checked_sub(total) {
            Some(left) => format!("leaves {:.0} MiB of", mib(left)),
            None => "does not fit in".into(),
        };
        writeln!(
            out,
            "in all        {:.1} MiB with {} tokens of context; {fits} {:.0} MiB",
            mib(total),
            self.context,
            mib(memory)
        )?;
        Ok(())
    }

    /// The same for programs.
    fn json(
        &self,
        file: &dyn ModelFile,
        (plan, memory): (&Plan, u64),
        tensors: bool,
    ) -> serde_json::Value {
        let formats: serde_json::Map<String, serde_json::Value> = self
            .formats
            .iter()
            .map(|(name, (count, bytes))| {
                ((*name).into(), json!({"tensors": count, "bytes": bytes}))
            })
            .collect();
        let list: Vec<_> = file
            .tensor_names()
            .into_iter()
            .filter(|_| tensors)
            .filter_map(|name| file.tensor(&name).map(|t| (name, t)))
            .map(|(name, t)| json!({"name": name, "format": t.format.name(), "shape": t.shape}))
            .collect();
        let adapters = self.adapters.iter();
        let adapters =
            adapters.map(|(name, rank, bytes)| json!({"name": name, "rank": rank, "bytes": bytes}));
        let mut object = json!({
            "model": file.label(),
            "arch": plan.arch,
            "layers": plan.kv.len(),
            "vocab": plan.vocab,
            "context": plan.context,
            "rope_scaling": plan.ropes.iter().map(|r| r.scaling.to_string()).collect::<Vec<_>>(),
            "parameters": self.parameters,
            "formats": formats,
            "weight_bytes": self.weights,
            "held_weight_bytes": self.held,
            "kv_format": self.kv.name(),
            "kv_bytes_per_1k_tokens": plan.kv_bytes_per_token(self.kv) * 1024,
            "arena_bytes": self.arena,
            "kv_bytes": self.kv_bytes(plan),
            "adapters": adapters.collect::<Vec<_>>(),
            "adapter_bytes": self.adapter_bytes(),
            "stated_context": self.context,
            "total_bytes": self.total(plan),
            "fits": self.total(plan) <= memory,
            "sites": plan.sites.len(),
        });
        if tensors {
            object["tensors"] = list.into();
        }
        object
    }
}
