//! The kernels, each written once in CubeCL and expanded into every device language.
// CubeCL expands kernels through generated functions that have no doc comments of their own, and a kernel's
// state is its parameters. Loops over comptime lists are unrolled by index.
#![allow(missing_docs, clippy::too_many_arguments, clippy::needless_range_loop)]

pub mod attention;
pub mod attention_shape;
pub mod bits;
pub mod body;
pub mod byte_codes;
pub mod choose;
pub mod codes;
pub mod contract;
pub mod decode;
pub mod delta;
pub mod env;
pub mod experts;
pub mod fragments;
pub mod gather;
pub mod gemm;
pub mod gemv;
pub mod gemv_bytes;
pub mod gemv_floats;
pub mod gemv_inputs;
pub mod gemv_order;
pub mod gemv_place;
pub mod gemv_sizes;
pub mod gemv_sums;
pub mod grouped;
pub mod matrix;
pub mod matrix_attention;
pub mod matrix_attention_loads;
pub mod matrix_product;
pub mod matrix_tiles;
pub mod norms;
pub mod page_blocks;
pub mod page_words;
pub mod pairs;
pub mod reduce;
pub mod route;
pub mod row_attention;
pub mod rows;
pub mod running_softmax;
pub mod scales;
pub mod shrink;
pub mod sink;
pub mod splits;
pub mod tile;
