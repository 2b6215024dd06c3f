//! What a stage found.

use clap::ValueEnum;
use serde::Serialize;

/// Parts of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Copies inside device memory.
    Bandwidth,
    /// Kernels and models against other implementations' numbers.
    Conformance,
    /// Tokens per second of the most telling models.
    Speeds,
    /// Tokens per second of the others, of batches and adapters.
    More,
    /// PyTorch, operation by operation.
    Eager,
    /// PyTorch with a static cache and `torch.compile`.
    Compiled,
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

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Bytes per second.
    Bandwidth(f64),
    /// Tests that passed, and the names of those that did not and of those that never ended.
    Tests {
        passed: usize,
        failed: Vec<String>,
        unfinished: Vec<String>,
    },
    /// The best of some repetitions.
    Speed {
        /// Tokens per second, all sequences together.
        rate: f64,
        /// Bytes that a token moves and its launches, where a lone sequence is decoded from an empty cache.
        per_token: Option<(u64, u32)>,
    },
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
        let own = !matches!(self.stage, Stage::Eager | Stage::Compiled);
        match &self.found {
            Found::Tests {
                failed, unfinished, ..
            } => !failed.is_empty() || !unfinished.is_empty(),
            Found::Error(_) => own,
            _ => false,
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let list = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!(", {} {what}: {}", names.len(), names.join(" ")),
        };
        let found = match &self.found {
            Found::Bandwidth(bytes) => format!("{:.0} GB/s", bytes / 1e9),
            Found::Tests {
                passed,
                failed,
                unfinished,
            } => {
                let failed = list("failed", failed);
                format!("{passed} passed{failed}{}", list("unfinished", unfinished))
            }
            Found::Speed { rate, .. } => format!("{rate:.1} tok/s"),
            Found::Error(reason) => format!("ERROR: {reason}"),
            Found::Absent(reason) => format!("absent: {reason}"),
            Found::NoTime => "no time was left".into(),
        };
        format!("{:<8} {:<40} {found}", self.device, self.what)
    }
}
