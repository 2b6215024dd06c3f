//! Graphs of all architectures: their text form, their invariants and, by the interpreter, their numbers.

#[path = "../../../tests/gguf_twin.rs"]
mod gguf_twin;
mod gguf_twins;
mod invariants;
mod oracle;
mod rope_scaling;
mod text;

use rusty_graph::Graph;
use rusty_loader::ModelFile;
use std::path::PathBuf;

/// Models of the supported architectures.
const MODELS: [&str; 21] = [
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "gemma2",
    "gemma3",
    "granite",
    "llama-dynamic",
    "llama-linear",
    "llama-llama3rope-sharded",
    "llama-mha-f16",
    "llama-yarn",
    "mistral-window",
    "mixtral",
    "olmo2",
    "phi3",
    "phi3-longrope",
    "qwen2-bias",
    "qwen3-moe",
    "qwen3-tied",
    "qwen3-untied-bf16",
    "qwen3-yarn",
];

/// A file or folder of the goldens, or of the models beside them.
fn golden(path: &str) -> PathBuf {
    let tests = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests"));
    let found = tests.join("goldens").join(path);
    match path.strip_prefix("models/").filter(|_| !found.exists()) {
        Some(model) => tests.join("architectures").join(model),
        None => found,
    }
}

fn open(path: &str) -> Box<dyn ModelFile> {
    rusty_loader::open(golden(path)).expect(path)
}

fn graph(path: &str) -> Graph {
    rusty_graph::arch::build(&*open(path)).expect(path)
}
