//! Whether what is timed says what the interpreter says.

use rusty_benches::cosine;
use rusty_compiler::{
    BindOptions, Executable, KvFormat, PAGE_TOKENS, RowResult, Sequence, SlotId, Step, Want,
};
use rusty_engine::throughput::Workload;
use rusty_graph::{Graph, Interpreter};
use rusty_loader::ModelFile;

/// Tokens that are read, the last of them by a step of its own.
const TOKENS: usize = 8;
/// What has room for them.
pub const WORKLOAD: Workload = Workload {
    prompt: TOKENS,
    generate: 0,
    depth: 0,
    batch: 1,
    adapters: 0,
};

/// Least cosine to the interpreter's logits: inputs are rounded to bytes, and each layer of random weights spreads what the ones before
/// differ by.
fn least(kv: KvFormat) -> f64 {
    match kv {
        KvFormat::Q4_0 => 0.95,
        _ => 0.98,
    }
}

/// The interpreter's logits of some tokens.
pub struct Oracle {
    logits: Vec<f32>,
}

fn tokens() -> Vec<u32> {
    (0..TOKENS as u32).map(|i| (i * 97 + 11) % 400).collect()
}

impl Oracle {
    /// Decodes all weights: a model of 0.6 billion takes a few GB until it returns.
    pub fn new(graph: &Graph, file: &dyn ModelFile) -> Self {
        let interpreter = Interpreter::new(graph, file).expect("interpreter");
        let values = interpreter.run(&tokens(), &[]).expect("values");
        Self {
            logits: values.logits().row(TOKENS - 1).to_vec(),
        }
    }

    /// Compares those that an executable makes with keys and values of a format.
    ///
    /// # Panics
    /// Where they are others: no speed is of interest then.
    pub fn check(&self, executable: &mut dyn Executable, kv: KvFormat) {
        let pages: Vec<u32> = (0..BindOptions::pages_for(TOKENS)).collect();
        step(executable, &pages, 0..TOKENS - 1);
        let have = step(executable, &pages, TOKENS - 1..TOKENS);
        let cosine = cosine(&have, &self.logits);
        let name = kv.name();
        println!("keys and values in {name}: cosine {cosine:.4} to the interpreter's logits");
        assert!(cosine >= least(kv), "{name}: cosine {cosine}");
    }
}

/// The logits of the last of some of the tokens.
fn step(executable: &mut dyn Executable, pages: &[u32], at: std::ops::Range<usize>) -> Vec<f32> {
    let count = at.len();
    let output = executable.run(&Step {
        tokens: &tokens()[at.clone()],
        positions: &at.map(|p| p as u32).collect::<Vec<_>>(),
        sequence_of: &vec![0; count],
        sequences: &[Sequence {
            pages,
            rope_length: PAGE_TOKENS as u32,
        }],
        slots: &vec![SlotId::BASE; count],
        wants: &vec![Want::Logits; count],
    });
    match output.expect("runs").results.pop() {
        Some((_, RowResult::Logits(logits))) => logits,
        other => panic!("no logits but {other:?}"),
    }
}
