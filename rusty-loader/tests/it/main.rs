//! Integration tests of the loader.

mod blocks;
mod gguf;
#[path = "../../../tests/golden_models.rs"]
mod golden_models;
#[path = "../../../tests/golden_paths.rs"]
mod golden_paths;
mod goldens;
mod hostile;
mod hostile_text;
#[cfg(feature = "hub")]
mod hub;
#[cfg(feature = "hub")]
mod hub_server;
mod models;
mod quantize_file;
mod quantized_checkpoints;
mod split;
mod text;
mod weights;
