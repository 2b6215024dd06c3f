//! Graphs of all architectures: their text form, their invariants and, by the interpreter, their numbers.

#[path = "../../../tests/gguf_twin.rs"]
mod gguf_twin;
mod gguf_twins;
#[path = "../../../tests/golden_paths.rs"]
mod golden_paths;
mod invariants;
mod oracle;
mod rope_scaling;
mod text;

use golden_paths::golden;
use rusty_graph::Graph;
use rusty_loader::ModelFile;

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

fn open(path: &str) -> Box<dyn ModelFile> {
    rusty_loader::open(golden(path)).expect(path)
}

fn graph(path: &str) -> Graph {
    rusty_graph::arch::build(&*open(path)).expect(path)
}
