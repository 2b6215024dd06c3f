//! What is compared, and how much faster Rusty means to be.

/// Who else does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// On the same file.
    LlamaCpp,
    /// On random weights of the same shape in this precision, which is what it has instead of blocks; eager.
    PyTorch(&'static str),
}

/// One comparison.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub shape: &'static str,
    pub format: &'static str,
    pub peer: Peer,
    /// Tokens of a timed prompt; 0: decoding is timed.
    pub prompt: usize,
    pub generate: usize,
    pub depth: usize,
    pub batch: usize,
    /// The least ratio of speeds, and the one aimed at.
    pub least: f64,
    pub aim: f64,
}

impl Work {
    pub fn name(&self) -> String {
        let mut name = format!("{} {} ", self.shape, self.format);
        match self.prompt {
            0 => name += &format!("tg{}", self.generate),
            prompt => name += &format!("pp{prompt}"),
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
        }
    }
}

const fn decode(shape: &'static str, format: &'static str, least: f64, aim: f64) -> Work {
    Work {
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
    Work {
        generate: 32,
        depth: 4096,
        ..decode(QWEN, "q4_0", 2.0, 3.3)
    },
    Work {
        generate: 32,
        batch: 16,
        ..decode(QWEN, "q4_0", 2.5, 3.3)
    },
    decode(LLAMA, "q4_0", 1.5, 1.8),
    decode(LLAMA, "q8_0", 1.5, 1.9),
    decode(LLAMA, "q4_k_m", 1.5, 1.8),
    prefill(LLAMA, "q4_0", 2.0, 2.5),
    prefill(LLAMA, "q4_k_m", 2.0, 2.5),
    Work {
        generate: 16,
        ..decode("llama-3-8b", "q4_0", 1.5, 1.8)
    },
    Work {
        peer: Peer::PyTorch("bf16"),
        generate: 16,
        ..decode(QWEN, "q4_0", 8.0, 10.0)
    },
    Work {
        peer: Peer::PyTorch("f32"),
        generate: 16,
        ..decode(QWEN, "q4_0", 15.0, 20.0)
    },
];
