//! The GPU executor: plan kernels become CubeCL kernels, their text, pipelines and recorded launches.
//!
//! ```text
//! plan kernel -> lower (spec + scalars) -> text -> pipeline        at bind, in parallel
//! step -> operands (one upload) -> recording for its shape -> submit -> results
//! ```
//!
//! Each kernel is written once ([`kernels`]) and specialised by data: formats, widths and bodies are part of a
//! [`KernelSpec`](text::KernelSpec), places in memory are scalars of a launch. Every kernel binds the same
//! buffers in the same order, at most seven with the info block, so it fits every device's limit. What no binding takes is
//! cut into several launches: weights by rows (`weights.rs`), keys and values by heads (`caches.rs`).

mod adapters;
mod arena;
mod attention;
mod attention_cuts;
mod bind;
mod caches;
mod contraction;
mod cuda_text;
mod depth_cuts;
mod device_properties;
mod executable;
mod experts;
mod kept_texts;
mod kept_tunings;
pub mod kernels;
mod lower;
mod matrix_products;
mod operands;
mod pages;
mod pieces;
mod prepare;
pub mod random_weights;
mod residence;
mod stage;
pub mod text;
pub mod tuner;
mod variants;
mod weights;
mod wgsl_text;

pub(crate) use bind::bind_tested_or_tuned;
pub use bind::{bind_gpu_tested, bind_tuned};
pub use executable::GpuExecutable;
