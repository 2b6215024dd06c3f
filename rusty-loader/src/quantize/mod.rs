//! Quantizing: [at load](quantize) into memory, or [into a file](file::write) by a [mixture](mix::Mix) of formats, weighted
//! by an [importance matrix](imatrix::Importance) where there is one.

pub mod file;
pub mod imatrix;
mod load;
pub mod mix;

pub use load::{Target, quantize};
