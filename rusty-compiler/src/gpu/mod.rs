//! The GPU executor.

pub mod kernels;
pub mod text;
