//! What a stage found.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// Parts of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Copies inside device memory and to it.
    Bandwidth,
    /// A few of the tests of `conformance`.
    Quick,
    /// PyTorch's products alone: the rate that prefill is held against.
    Matmul,
    /// Tokens per second of the most telling models.
    Speeds,
    /// PyTorch, operation by operation.
    Eager,
    /// PyTorch with a static cache and `torch.compile`.
    Compiled,
    /// From the start of a process to its first token, with empty caches and again.
    Start,
    /// Kernels and models against other implementations' numbers.
    Conformance,
    /// Kernels one by one beside what bytes allow.
    Kernels,
    /// Chains of operations, fused, beside Burn and PyTorch.
    Fusion,
    /// Tokens per second of other models, at a depth, of batches, adapters and weights that stream.
    More,
}

/// One finding.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub stage: Stage,
    pub device: String,
    /// What was run: a test program, or a model with its format and work.
    pub what: String,
    pub found: Found,
}

/// What a speed is held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Bytes that a token moves and its launches, where a lone sequence is decoded.
    pub per_token: Option<(u64, u32)>,
    /// The same work without adapters.
    pub adapted: Option<Adapted>,
    /// Bytes of weights that come to the device in each step.
    pub streamed: Option<u64>,
}

/// What work with adapters is held against.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adapted {
    /// Tokens per second without.
    pub base: f64,
    /// The part of that which bytes allow: weights by weights and tables.
    pub bound: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Bytes per second.
    Bandwidth(f64),
    /// How tests ended.
    Tests {
        passed: usize,
        failed: Vec<String>,
        /// Those that ended their program or took too long.
        unfinished: Vec<String>,
        /// Those for which no time was left.
        left_out: usize,
    },
    /// The best of some repetitions.
    Speed {
        /// Tokens per second, all sequences together.
        rate: f64,
        facts: Facts,
    },
    /// PyTorch's products.
    Products {
        /// Operations per second.
        operations: f64,
        /// Tokens of a prompt per second that they alone would allow, where they are a model's.
        rate: Option<f64>,
    },
    /// Seconds from a start to a token.
    Start {
        /// Of the first, which compiles and measures kernels.
        first: f64,
        /// The best of those after it, where there was time for any.
        later: Option<f64>,
    },
    /// Ways to run kernels that a model does without: the device did not take them, or they went wrong there.
    Without(Vec<String>),
    /// A kernel's or a chain's figures.
    Figures(String),
    /// What went wrong.
    Error(String),
    /// What this machine lacks.
    Absent(String),
    /// No time was left.
    NoTime,
}

impl Outcome {
    pub fn new(stage: Stage, device: &str, what: impl Into<String>, found: Found) -> Self {
        Self {
            stage,
            device: device.into(),
            what: what.into(),
            found,
        }
    }

    /// Whether something of Rusty's is wrong; what no time was left for, or what this machine lacks, is not.
    pub fn failed(&self) -> bool {
        let own = !matches!(self.stage, Stage::Eager | Stage::Compiled | Stage::Matmul);
        match &self.found {
            Found::Tests {
                failed, unfinished, ..
            } => !failed.is_empty() || !unfinished.is_empty(),
            Found::Without(_) => true,
            Found::Error(_) => own,
            _ => false,
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!("{:<8} {:<40} {}", self.device, self.what, self.found)
    }
}

impl Display for Found {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Found::Bandwidth(bytes) => write!(f, "{:.0} GB/s", bytes / 1e9),
            Found::Tests {
                passed,
                failed,
                unfinished,
                left_out,
            } => f.write_str(&tests_line(*passed, failed, unfinished, *left_out)),
            Found::Speed { rate, .. } => write!(f, "{rate:.1} tok/s"),
            Found::Products { operations, rate } => {
                let rate = rate.map_or(String::new(), |r| format!(", {r:.0} tok/s"));
                write!(f, "{:.0} TFLOP/s{rate}", operations / 1e12)
            }
            Found::Start { first, later } => {
                let then = |s: f64| format!(", then after {s:.2} s (aim: 1 s)");
                let later = later.map_or(String::new(), then);
                write!(f, "a token after {first:.2} s{later}")
            }
            Found::Without(variants) => write!(f, "does without {}", variants.join("; ")),
            Found::Figures(figures) => f.write_str(figures),
            Found::Error(reason) => write!(f, "ERROR: {reason}"),
            Found::Absent(reason) => write!(f, "absent: {reason}"),
            Found::NoTime => f.write_str("left out: no time"),
        }
    }
}

fn tests_line(passed: usize, failed: &[String], unfinished: &[String], left_out: usize) -> String {
    let list = |what: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!(", {} {what}: {}", names.len(), names.join(" ")),
    };
    let left_out = match left_out {
        0 => String::new(),
        some => format!(", {some} left out: no time"),
    };
    let (failed, unfinished) = (list("failed", failed), list("unfinished", unfinished));
    format!("{passed} passed{failed}{unfinished}{left_out}")
}
