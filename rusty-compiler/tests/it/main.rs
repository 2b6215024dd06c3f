//! Tests of the compiler: plans as text, and kernels against the oracle on every device.

mod adapted_experts;
mod adapted_rows;
#[cfg(feature = "gpu")]
mod adapter_pools;
mod adapter_tables;
mod batching;
#[cfg(feature = "gpu")]
mod binding_limits;
mod brain_floats;
#[cfg(feature = "gpu")]
mod byte_products;
mod caches;
#[cfg(all(feature = "gpu", target_os = "linux", target_arch = "x86_64"))]
mod choices;
#[cfg(all(feature = "gpu", target_os = "linux", target_arch = "x86_64"))]
mod cuda_texts;
#[cfg(feature = "gpu")]
mod cut_heads;
#[cfg(feature = "gpu")]
mod decoding;
#[path = "../../../tests/expected.rs"]
mod expected;
#[cfg(feature = "gpu")]
mod expert_products;
mod experts;
mod fallbacks;
#[path = "../../../tests/golden_models.rs"]
mod golden_models;
#[path = "../../../tests/golden_paths.rs"]
mod golden_paths;
mod goldens;
#[cfg(feature = "gpu")]
mod gpu_attentions;
#[cfg(feature = "gpu")]
mod gpu_contractions;
#[cfg(feature = "gpu")]
mod gpu_rows;
#[cfg(feature = "gpu")]
mod gpu_specs;
#[cfg(feature = "gpu")]
mod gpu_text;
#[cfg(all(feature = "gpu", target_os = "linux", target_arch = "x86_64"))]
mod host_cuda;
mod long_context;
#[cfg(feature = "gpu")]
mod matrix_units;
#[cfg(feature = "gpu")]
mod out_of_memory;
mod own_shrinks;
#[cfg(feature = "gpu")]
mod plans;
#[cfg(feature = "gpu")]
mod random_weights;
mod reading_ahead;
mod reference;
#[cfg(feature = "gpu")]
mod routes;
#[cfg(feature = "gpu")]
mod running_ahead;
#[cfg(feature = "gpu")]
mod self_tests;
#[cfg(feature = "gpu")]
mod shape_only;
mod shortened;
#[cfg(feature = "gpu")]
mod softmax;
mod streaming;
mod submissions;
#[path = "../../../tests/test_gpu.rs"]
mod test_gpu;
#[cfg(feature = "gpu")]
mod tiles;
#[cfg(feature = "gpu")]
mod tuning;
#[cfg(feature = "gpu")]
mod watched_gpu;
