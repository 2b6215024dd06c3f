//! Graphs of all architectures: their text form, their invariants and, by the interpreter, their numbers.

#[path = "../../../tests/expected.rs"]
mod expected;
#[path = "../../../tests/gguf_twin.rs"]
mod gguf_twin;
mod gguf_twins;
#[path = "../../../tests/golden_models.rs"]
mod golden_models;
#[path = "../../../tests/golden_paths.rs"]
mod golden_paths;
mod invariants;
mod oracle;
mod rope_scaling;
mod softmax;
mod text;

use golden_models::MODELS;
use golden_paths::golden;
use rusty_graph::Graph;
use rusty_loader::ModelFile;

fn open(path: &str) -> Box<dyn ModelFile> {
    rusty_loader::open(golden(path)).expect(path)
}

fn graph(path: &str) -> Graph {
    rusty_graph::arch::build(&*open(path)).expect(path)
}
