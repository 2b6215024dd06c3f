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
    /// Tokens per second of models.
    Speeds,
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
    /// Tests that passed, and the names of those that did not.
    Tests {
        passed: usize,
        failed: Vec<String>,
        /// Whether the program ended by itself.
        whole: bool,
    },
    /// Tokens per second.
    Speed {
        rate: f64,
        /// Bytes that a decoded token moves, and its launches.
        bytes: u64,
        dispatches: u32,
        load_s: f64,
    },
    /// Why there is nothing.
    Nothing(String),
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

    /// Whether something is wrong; what no time was left for, or what this machine lacks, is not.
    pub fn failed(&self) -> bool {
        match &self.found {
            Found::Tests { failed, whole, .. } => !failed.is_empty() || !whole,
            _ => false,
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let found = match &self.found {
            Found::Bandwidth(bytes) => format!("{:.0} GB/s", bytes / 1e9),
            Found::Tests {
                passed,
                failed,
                whole,
            } => {
                let end = if *whole {
                    ""
                } else {
                    ", stopped before its end"
                };
                let names = match &failed[..] {
                    [] => String::new(),
                    names => format!(": {}", names.join(", ")),
                };
                format!("{passed} passed, {} failed{end}{names}", failed.len())
            }
            Found::Speed { rate, .. } => format!("{rate:.1} tok/s"),
            Found::Nothing(reason) => format!("nothing: {reason}"),
        };
        format!("{:<8} {:<40} {found}", self.device, self.what)
    }
}
