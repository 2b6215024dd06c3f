//! Tests of the compiler: plans as text, and kernels against the oracle on every device.

mod adapted_rows;
mod adapter_pools;
mod adapter_tables;
mod batching;
mod binding_limits;
mod byte_products;
mod caches;
mod decoding;
#[path = "../../../tests/expected.rs"]
mod expected;
mod expert_products;
mod experts;
mod fallbacks;
#[path = "../../../tests/golden_models.rs"]
mod golden_models;
#[path = "../../../tests/golden_paths.rs"]
mod golden_paths;
mod goldens;
mod gpu_attentions;
mod gpu_contractions;
mod gpu_rows;
mod gpu_specs;
mod gpu_text;
mod long_context;
mod matrix_units;
mod out_of_memory;
mod own_shrinks;
mod plans;
mod random_weights;
mod reference;
mod self_tests;
mod shape_only;
mod shortened;
mod softmax;
mod streaming;
mod submissions;
#[path = "../../../tests/test_gpu.rs"]
mod test_gpu;
mod tiles;
mod tuning;
mod watched_gpu;
