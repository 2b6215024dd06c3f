//! Options of `rusty bench`, and of models made up.

use super::{AdapterPrecision, Gpu, Kv, Quantize, Rope, threads};
use clap::{Args, ValueEnum};

/// A model made up for measuring and planning.
#[derive(Args, Debug)]
pub struct RandomModel {
    /// Random weights of real shapes instead of a file: qwen3-0.6b, llama-3.2-1b, gemma-3-1b, mistral-7b, llama-3-8b,
    /// qwen3-30b-a3b, and small ones, llama-tiny, qwen3-tiny, qwen3moe-tiny, deepseek-tiny.
    #[arg(long, value_name = "SHAPE", conflicts_with = "model")]
    pub random: Option<String>,
    /// Format of random weights.
    #[arg(long, default_value = "q4_0", requires = "random")]
    pub format: String,
}

/// Adapters made up for measuring and planning.
#[derive(Args, Debug)]
pub struct RandomAdapters {
    /// Random adapters on all linear layers but the head; sequences that run take them in turn.
    #[arg(long = "adapters", default_value_t = 0, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=4096))]
    pub count: usize,
    /// Rank of random adapters.
    #[arg(long = "adapter-rank", default_value_t = 16, requires = "count", value_name = "R", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub rank: u32,
}

/// Options of `rusty bench`.
#[derive(Args, Debug)]
pub struct Bench {
    /// GGUF file, model folder or hub id [default: the built-in demo].
    pub model: Option<String>,
    #[command(flatten)]
    pub random: RandomModel,
    #[command(flatten)]
    pub rope: Rope,
    /// Prompt tokens; 0: no prefill test.
    #[arg(short = 'p', long, default_value_t = 512)]
    pub prompt: usize,
    /// Generated tokens; 0: no decode test.
    #[arg(short = 'n', long, default_value_t = 128)]
    pub generate: usize,
    /// Tokens already in the cache.
    #[arg(short, long, default_value_t = 0)]
    pub depth: usize,
    /// Sequences at once.
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    #[command(flatten)]
    pub adapters: RandomAdapters,
    /// Precision of random adapters.
    #[arg(long, value_enum, default_value_t = AdapterPrecision::F16, value_name = "PRECISION")]
    pub adapter_precision: AdapterPrecision,
    /// Repetitions.
    #[arg(short, long, default_value_t = 5)]
    pub repetitions: usize,
    /// Threads of the CPU device.
    #[arg(short, long, value_parser = threads)]
    pub threads: Option<usize>,
    /// auto, cpu, vulkan, metal, dx12, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    pub device: String,
    #[command(flatten)]
    pub gpu: Gpu,
    /// Storage of keys and values.
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub kv: Kv,
    /// Quantize float weights at load.
    #[arg(long, value_enum)]
    pub quantize: Option<Quantize>,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Forms of `rusty bench`'s result.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A table.
    Text,
    /// A JSON array.
    Json,
}
