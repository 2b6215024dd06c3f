//! EXPLAIN: what the compiler made of a graph, as text and as totals.

use crate::Result;
use crate::passes::compile_observed;
use crate::plan::{Anchor, Kernel, Operand, Plan, Sink};
use rusty_backend::Target;
use rusty_graph::{Graph, WeightDecl};
use std::fmt::Write;

/// The plan after one pass.
#[derive(Clone, Debug)]
pub struct PassReport {
    /// Pass name.
    pub name: &'static str,
    /// The plan's text, or `None` where the pass changed nothing.
    pub text: Option<String>,
    /// Kernels after the pass.
    pub kernels: usize,
}

/// Totals and texts of one compilation.
#[derive(Clone, Debug)]
pub struct Explain {
    /// The passes in order.
    pub passes: Vec<PassReport>,
    /// The final plan.
    pub plan: Plan,
    /// Nodes of the graph that compute something (inputs and weights not counted).
    pub nodes: usize,
    /// Launches of one decoded token.
    pub dispatches_per_token: u32,
    /// Launches of one decoded token whose row names an adapter.
    pub dispatches_with_adapters: u32,
    /// Launches of one decoded token without fusion.
    pub unfused_dispatches_per_token: u32,
    /// Bytes of weights read and activations moved for one decoded token (cache reads not counted).
    pub bytes_per_token: u64,
    /// Bytes of activations read and written for one decoded token, its own keys and values included.
    pub activation_bytes: u64,
    /// The same without fusion.
    pub unfused_activation_bytes: u64,
    /// Predicted time of a token, where the target's bandwidth and its cost of a launch are known.
    pub prediction: Option<Prediction>,
}

/// What decoding would take on a target by its bytes and launches. A prediction: nothing was measured, and kernels that
/// read slower than the target can make it slower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds to read and write a token's bytes at an empty cache.
    pub bytes_seconds: f64,
    /// Seconds of a token's launches.
    pub launch_seconds: f64,
}

impl Prediction {
    /// Tokens of one sequence per second.
    pub fn tokens_per_second(&self) -> f64 {
        1.0 / (self.bytes_seconds + self.launch_seconds)
    }
}

/// Compiles a graph and reports on it.
///
/// # Errors
/// As [`compile`](crate::compile).
pub fn explain(graph: &Graph, target: &Target) -> Result<Explain> {
    let mut passes: Vec<PassReport> = Vec::new();
    let mut last = String::new();
    let mut unfused = None;
    let plan = compile_observed(graph, target, &mut |name, plan| {
        unfused.get_or_insert_with(|| plan.activation_bytes());
        let text = plan.to_string();
        let changed = text != last;
        passes.push(PassReport {
            name,
            text: changed.then(|| text.clone()),
            kernels: plan.kernels.len(),
        });
        last = text;
    })?;
    let sources = graph
        .nodes
        .iter()
        .filter(|n| n.op.class() == rusty_graph::OpClass::Source)
        .count();
    Ok(Explain {
        nodes: graph.nodes.len() - sources,
        dispatches_per_token: plan.dispatches(1),
        dispatches_with_adapters: plan.dispatches_with_adapters(1),
        unfused_dispatches_per_token: plan.unfused_kernels,
        bytes_per_token: plan.bytes_per_token(),
        activation_bytes: plan.activation_bytes(),
        unfused_activation_bytes: unfused.unwrap_or(0),
        prediction: plan.predicted(target),
        passes,
        plan,
    })
}

impl Explain {
    /// The report as people read it: what each pass did, then the plan with bytes, then totals.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for pass in &self.passes {
            match &pass.text {
                Some(text) => {
                    let _ = writeln!(
                        out,
                        "== after {} ({} kernels)\n{text}",
                        pass.name, pass.kernels
                    );
                }
                None => {
                    let _ = writeln!(out, "== after {}: same as above", pass.name);
                }
            }
        }
        let _ = writeln!(out, "== bytes of a one-row step");
        for (at, kernel) in self.plan.kernels.iter().enumerate() {
            let (read, written) = self.plan.kernel_bytes(at);
            let _ = writeln!(
                out,
                "{:>12} read {:>9} written  {}",
                read, written, kernel.name
            );
        }
        let _ = writeln!(
            out,
            "\nper decoded token: {} dispatches ({} unfused), {} bytes; arena {} bytes",
            self.dispatches_per_token,
            self.unfused_dispatches_per_token,
            self.bytes_per_token,
            self.plan.arena_bytes
        );
        let (fused, unfused) = (self.activation_bytes, self.unfused_activation_bytes);
        let _ = writeln!(
            out,
            "of these {fused} bytes of activations ({unfused} unfused, {:.0}% saved)",
            100.0 * (1.0 - fused as f64 / unfused.max(1) as f64)
        );
        let adapted = self.dispatches_with_adapters;
        let _ = writeln!(out, "with adapters: {adapted} dispatches");
        if let Some(prediction) = self.prediction {
            let _ = writeln!(
                out,
                "prediction, not measured: {:.0} tok/s at an empty cache ({:.3} ms for bytes, {:.3} ms for launches)",
                prediction.tokens_per_second(),
                prediction.bytes_seconds * 1e3,
                prediction.launch_seconds * 1e3
            );
        }
        out
    }
}

impl Plan {
    /// Launches of a step of `rows` rows of different sequences that all want their most likely token. Where a launch adds up what splits of
    /// keys leave (Metal), steps that split some have one more for each layer.
    pub fn dispatches(&self, rows: u32) -> u32 {
        let of = |k: &Kernel| {
            let chosen = k.variants.iter().find(|v| v.rows.contains(&rows));
            chosen.map_or(1, |v| v.dispatches)
        };
        let counts = self.kernels.iter().filter(|k| !self.is_for_hidden(k));
        counts.map(of).sum()
    }

    /// The same of a step in which a row names an adapter.
    pub fn dispatches_with_adapters(&self, rows: u32) -> u32 {
        let of = |k: &Kernel| k.adapter_dispatches(&self.target, rows);
        self.dispatches(rows) + self.kernels.iter().map(of).sum::<u32>()
    }

    /// Bytes that a one-row step reads and writes in kernel `at`, cache reads not counted.
    pub fn kernel_bytes(&self, at: usize) -> (u64, u64) {
        let (read, written) = self.kernel_activations(at);
        (self.kernel_weights(at) + read, written)
    }

    /// Bytes of weights that a one-row step reads in kernel `at`.
    fn kernel_weights(&self, at: usize) -> u64 {
        let kernel = &self.kernels[at];
        let one_row =
            |w: &WeightDecl| w.bytes() / u64::from(w.shape.first().copied().unwrap_or(1).max(1));
        let matrices = match &kernel.anchor {
            Anchor::Contract { parts, .. } => parts
                .iter()
                .map(|p| self.weights[p.weight.index()].bytes())
                .sum(),
            // Those that one row takes.
            Anchor::Experts { parts, used, .. } => {
                let taken = parts
                    .iter()
                    .flat_map(|part| part.weights.iter().take(*used as usize));
                taken.map(|w| self.weights[w.index()].bytes()).sum()
            }
            Anchor::Gather { table, .. } => one_row(&self.weights[table.index()]),
            _ => 0,
        };
        let vectors = kernel.operands.iter().map(|operand| match operand {
            Operand::Vector(w) => self.weights[w.index()].bytes(),
            _ => 0,
        });
        matrices + vectors.sum::<u64>()
    }

    /// Bytes of activations that a one-row step reads and writes in kernel `at`.
    fn kernel_activations(&self, at: usize) -> (u64, u64) {
        let kernel = &self.kernels[at];
        // What is made first, its cubes have. Queries that attention makes stay there.
        let own = |v| kernel.first.iter().any(|t| t.sink == Sink::Value(v));
        let read = kernel.operands.iter().map(|operand| match operand {
            Operand::Value(v) if own(*v) => 0,
            Operand::Value(v) => u64::from(self.value(*v).width) * 4,
            Operand::Rope(r) => u64::from(self.ropes[r.index()].dims) * 4,
            Operand::Vector(_) => 0,
        });
        let kept = !matches!(kernel.anchor, Anchor::Attention { .. });
        let first = kernel.first.iter();
        let first = first.filter(|t| kept || !matches!(t.sink, Sink::Value(_)));
        let written = first.chain(&kernel.tails).map(|t| match t.sink {
            Sink::Value(_) => u64::from(t.width) * 4,
            Sink::Key { .. } | Sink::Val { .. } => u64::from(t.width) * 2,
        });
        (read.sum(), written.sum())
    }

    /// Kernels of a decoded token.
    fn decoding(&self) -> impl Iterator<Item = usize> {
        (0..self.kernels.len()).filter(|at| !self.is_for_hidden(&self.kernels[*at]))
    }

    /// Bytes of one decoded token, cache reads not counted.
    pub fn bytes_per_token(&self) -> u64 {
        let each = self.decoding().map(|at| self.kernel_bytes(at));
        each.map(|(r, w)| r + w).sum()
    }

    /// Bytes of activations of one decoded token, its own keys and values included.
    pub fn activation_bytes(&self) -> u64 {
        let each = self.decoding().map(|at| self.kernel_activations(at));
        each.map(|(r, w)| r + w).sum()
    }

    /// What decoding would take on a target, where it tells.
    pub fn predicted(&self, target: &Target) -> Option<Prediction> {
        let known = target.read_bandwidth > 0 && target.launch_nanos > 0;
        known.then(|| Prediction {
            bytes_seconds: self.bytes_per_token() as f64 / target.read_bandwidth as f64,
            launch_seconds: f64::from(self.dispatches(1)) * f64::from(target.launch_nanos) * 1e-9,
        })
    }
}
