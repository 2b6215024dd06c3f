//! What is compared, and how much better Rusty means to be.

use super::check;
use serde::{Deserialize, Serialize};

/// Who else does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// On the same file.
    LlamaCpp,
    /// On random weights of the same shape in this precision, which is what it has instead of blocks; eager.
    PyTorch(&'static str),
    /// Rusty itself without the adapter that it has here.
    Base,
}

impl Peer {
    /// The script that is its side; none where a process of Rusty's measures both.
    pub fn script(self) -> Option<&'static str> {
        match self {
            Peer::LlamaCpp => Some("run_llama_cpp.py"),
            Peer::PyTorch(_) => Some("run_pytorch.py"),
            Peer::Base => None,
        }
    }
}

/// What a process is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Logits, before anything is measured.
    Answer,
    /// Tokens per second.
    #[default]
    Speed,
    /// Seconds from opening a file to the first token behind a prompt.
    Opening,
    /// Most megabytes that are ever resident beside weights, keys and values included.
    Memory,
}

/// One comparison.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub kind: Kind,
    pub shape: &'static str,
    pub format: &'static str,
    pub peer: Peer,
    /// Tokens of a prompt; where speed is measured, of one that is timed, or 0: decoding is timed.
    pub prompt: usize,
    pub generate: usize,
    pub depth: usize,
    pub batch: usize,
    /// The ratio to the peer that is asked for, and the one aimed at: at least these of speeds, at most these of times. Of
    /// memory the megabytes that it may take at most, and those aimed at without keys and values.
    pub least: f64,
    pub aim: f64,
}

impl Work {
    pub fn name(&self) -> String {
        let mut name = format!("{} {} ", self.shape, self.format);
        match (self.kind, self.prompt) {
            (Kind::Opening, _) => name += "open + first token",
            (Kind::Memory, prompt) => name += &format!("memory, {prompt} + {}", self.generate),
            (_, 0) => name += &format!("tg{}", self.generate),
            (_, prompt) => name += &format!("pp{prompt}"),
        }
        if self.depth > 0 {
            name += &format!(" at {}", self.depth);
        }
        if self.batch > 1 {
            name += &format!(" x {}", self.batch);
        }
        match self.peer {
            Peer::LlamaCpp => name,
            Peer::PyTorch(precision) => format!("{name} (PyTorch {precision})"),
            Peer::Base => format!("{name}, one adapter"),
        }
    }

    /// A figure with its unit, where that is not tokens per second.
    pub fn figure(&self, value: f64) -> String {
        match self.kind {
            Kind::Answer | Kind::Speed => format!("{value:.1}"),
            Kind::Opening => format!("{value:.2} s"),
            Kind::Memory => format!("{value:.0} MB"),
        }
    }

    /// Whether a ratio to the peer is what is asked for.
    pub fn is_met(&self, ratio: f64) -> bool {
        match self.kind {
            Kind::Opening => ratio <= self.least,
            _ => ratio >= self.least,
        }
    }

    /// Whether it decodes one sequence at no depth, so that memory bounds it, in a few seconds.
    pub fn is_bound_by_memory(&self) -> bool {
        let decodes = self.kind == Kind::Speed && self.prompt == 0 && self.depth == 0;
        decodes && self.batch == 1 && !matches!(self.peer, Peer::PyTorch(_))
    }

    /// Whether weights are floats, and so multiplied as such.
    pub fn is_float(&self) -> bool {
        matches!(self.format, "bf16" | "f16" | "f32")
    }

    /// The prompt where both sides must have the same.
    pub fn tokens(&self) -> Vec<u32> {
        check::prompt(self.prompt)
    }
}

const fn decode(shape: &'static str, format: &'static str, least: f64, aim: f64) -> Work {
    Work {
        kind: Kind::Speed,
        shape,
        format,
        peer: Peer::LlamaCpp,
        prompt: 0,
        generate: 64,
        depth: 0,
        batch: 1,
        least,
        aim,
    }
}

const fn prefill(shape: &'static str, format: &'static str, least: f64, aim: f64) -> Work {
    Work {
        prompt: 512,
        generate: 0,
        ..decode(shape, format, least, aim)
    }
}

const fn deep(shape: &'static str) -> Work {
    Work {
        generate: 32,
        depth: 4096,
        ..decode(shape, "q4_0", 2.0, 3.3)
    }
}

const fn together(shape: &'static str) -> Work {
    Work {
        generate: 32,
        batch: 16,
        ..decode(shape, "q4_0", 2.5, 3.3)
    }
}

const fn adapted(shape: &'static str) -> Work {
    Work {
        peer: Peer::Base,
        ..decode(shape, "q4_0", 0.9, 0.93)
    }
}

const fn opening(shape: &'static str) -> Work {
    Work {
        kind: Kind::Opening,
        prompt: 32,
        generate: 0,
        ..decode(shape, "q4_0", 0.7, 0.4)
    }
}

/// A context of 2048 tokens, some of which are to spare.
const fn memory(shape: &'static str) -> Work {
    Work {
        kind: Kind::Memory,
        prompt: 2016,
        generate: 16,
        ..decode(shape, "q4_0", 300.0, 100.0)
    }
}

const fn beside_pytorch(
    shape: &'static str,
    precision: &'static str,
    least: f64,
    aim: f64,
) -> Work {
    Work {
        peer: Peer::PyTorch(precision),
        ..decode(shape, "q4_0", least, aim)
    }
}

const QWEN: &str = "qwen3-0.6b";
const LLAMA: &str = "llama-3.2-1b";

pub static WORKS: &[Work] = &[
    decode(QWEN, "q4_0", 1.5, 1.8),
    decode(QWEN, "q8_0", 1.5, 1.9),
    decode(QWEN, "q4_k_m", 1.5, 1.8),
    decode(QWEN, "bf16", 1.4, 1.6),
    prefill(QWEN, "q4_0", 2.0, 2.5),
    prefill(QWEN, "q8_0", 2.5, 3.0),
    prefill(QWEN, "q4_k_m", 2.0, 2.5),
    prefill(QWEN, "bf16", 1.15, 1.3),
    deep(QWEN),
    together(QWEN),
    adapted(QWEN),
    opening(QWEN),
    memory(QWEN),
    decode(LLAMA, "q4_0", 1.5, 1.8),
    decode(LLAMA, "q8_0", 1.5, 1.9),
    decode(LLAMA, "q4_k_m", 1.5, 1.8),
    decode(LLAMA, "bf16", 1.4, 1.6),
    prefill(LLAMA, "q4_0", 2.0, 2.5),
    prefill(LLAMA, "q8_0", 2.5, 3.0),
    prefill(LLAMA, "q4_k_m", 2.0, 2.5),
    prefill(LLAMA, "bf16", 1.15, 1.3),
    deep(LLAMA),
    together(LLAMA),
    adapted(LLAMA),
    opening(LLAMA),
    memory(LLAMA),
    Work {
        generate: 16,
        ..decode("llama-3-8b", "q4_0", 1.5, 1.8)
    },
    beside_pytorch(QWEN, "bf16", 8.0, 10.0),
    beside_pytorch(QWEN, "f32", 15.0, 20.0),
    beside_pytorch(LLAMA, "bf16", 8.0, 10.0),
    beside_pytorch(LLAMA, "f32", 15.0, 20.0),
];
