//! Integration tests of the loader.

mod blocks;
mod gguf;
mod goldens;
mod hostile;
mod models;
mod weights;
