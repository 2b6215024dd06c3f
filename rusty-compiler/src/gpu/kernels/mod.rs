//! The kernels, each written once in CubeCL and expanded into every device language.
// CubeCL expands kernels through generated functions that have no doc comments of their own, and a kernel's
// state is its parameters.
#![allow(missing_docs, clippy::too_many_arguments)]

pub mod attention;
pub mod bits;
pub mod body;
pub mod choose;
pub mod contract;
pub mod decode;
pub mod delta;
pub mod env;
pub mod gemm;
pub mod gemv;

pub mod reduce;
pub mod rows;
pub mod sink;
