//! Integration tests of the loader.

mod blocks;
mod goldens;
mod hostile;
mod models;
mod text;
