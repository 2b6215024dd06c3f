//! Options of the commands that say what a model file holds and becomes.

use super::{AdapterPrecision, Kv, RandomAdapters, RandomModel, Rope};
use clap::Args;
use std::path::PathBuf;

/// Options of `rusty explain`.
#[derive(Args, Debug)]
pub struct Explain {
    /// GGUF file, model folder or hub id [default: the built-in demo].
    pub model: Option<String>,
    #[command(flatten)]
    pub random: RandomModel,
    /// Plan for a described target instead of the device at hand (h200, rtx4090, m2, rdna3, vulkan, cuda:sm_90, avx2, ...).
    #[arg(long, value_name = "NAME", conflicts_with = "device")]
    pub target: Option<String>,
    /// Device whose target is used: auto, cpu, vulkan, metal, dx12, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    pub device: String,
    #[command(flatten)]
    pub rope: Rope,
    /// Print totals and kernels as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `rusty compile`.
#[derive(Args, Debug)]
pub struct Compile {
    /// GGUF file, model folder or hub id [default: the built-in demo].
    pub model: Option<String>,
    #[command(flatten)]
    pub random: RandomModel,
    /// An API (vulkan, metal, dx12, webgpu), a CUDA architecture (cuda:sm_90), or a GPU (h200, rtx4090, m2, rdna3, llvmpipe).
    #[arg(long, value_name = "NAME")]
    pub target: String,
    /// Folder of the package; made where it is not there.
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// Storage of keys and values for which kernels are made.
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub kv: Kv,
    /// Make kernels that round no inputs to bytes or 16-bit floats, for use with or without `--single-precision`; others serve only without.
    #[arg(long)]
    pub single_precision: bool,
    /// Leave out the kernels that take adapters.
    #[arg(long)]
    pub no_adapters: bool,
    #[command(flatten)]
    pub rope: Rope,
}

/// Options of `rusty inspect`.
#[derive(Args, Debug)]
pub struct Inspect {
    /// GGUF file, model folder or hub id [default: the built-in demo].
    pub model: Option<String>,
    #[command(flatten)]
    pub random: RandomModel,
    /// Context for which memory is stated [default: the model's, at most 4096].
    #[arg(long, value_name = "TOKENS")]
    pub ctx: Option<u32>,
    /// Storage of keys and values for which memory is stated.
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub kv: Kv,
    /// An adapter to be counted too: a PEFT folder, an adapter file, or the name of one of the demo's; may be repeated. A weight changes nothing.
    #[arg(long = "adapter", value_name = "PATH[=WEIGHT]")]
    pub adapters: Vec<String>,
    #[command(flatten)]
    pub random_adapters: RandomAdapters,
    /// Precision of the adapters' tables; random ones are stored in f16.
    #[arg(long, value_enum, default_value_t = AdapterPrecision::Stored, value_name = "PRECISION")]
    pub adapter_precision: AdapterPrecision,
    #[command(flatten)]
    pub rope: Rope,
    /// List every tensor.
    #[arg(long)]
    pub tensors: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
