//! From a [`Graph`](rusty_graph::Graph) to fused kernels that run.
//!
//! ```text
//! Graph -> lower (one kernel per op) -> passes -> Plan -> bind(weights, device) -> Executable
//! ```
//!
//! A [`Plan`] is an ordered list of [kernels](plan::Kernel): an anchor that does the heavy work and bodies,
//! held as data, for the fused program before and after it. [`compile`] needs no device, only its
//! [`Target`](rusty_backend::Target) facts. [`bind`] attaches weights and a device; the resulting
//! [`Executable`] runs ragged [steps](Step) in which every row may name another adapter [slot](slots).
//! Without the feature `gpu`, which is on by default, plans are made for any target, and run on CPUs.

// Plans say what only executables of GPUs ask for.
#![cfg_attr(not(feature = "gpu"), allow(dead_code, unused_imports))]

mod bind;
pub mod cpu;
mod declared;
pub mod delta_table;
#[cfg(feature = "gpu")]
mod device_cache;
pub mod error;
pub mod explain;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod interleaving;
#[cfg(feature = "gpu")]
pub mod package;
pub mod passes;
pub mod plan;
mod rotation;
#[cfg(feature = "gpu")]
mod self_test;
pub mod slots;
pub mod step;
mod upload;

pub use bind::{bind, bind_tested, planning_facts};
pub use delta_table::DeltaTable;
pub use error::{Error, Result};
pub use explain::{Explain, Prediction, explain};
#[cfg(feature = "gpu")]
pub use gpu::{bind_gpu_tested, bind_tuned};
#[cfg(feature = "gpu")]
pub use package::{BUILD, kernel_texts};
pub use passes::{compile, compile_observed};
pub use plan::Plan;
#[cfg(feature = "gpu")]
pub use self_test::replace_wrong;
pub use slots::{
    EmbeddingDelta, Kron, KvPrefix, LowRankRows, PrefixLayer, RowChange, SiteDelta, SlotData,
    SlotId, SlotMisfit, SlotShape, kron,
};
pub use step::{
    BindOptions, Executable, KvFormat, MemoryUse, RowResult, Sequence, Step, StepOutput, StepQueue,
    Want, chosen,
};
pub use upload::Upload;

/// Tokens per KV page.
pub const PAGE_TOKENS: usize = 16;
