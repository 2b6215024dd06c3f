//! The command line, as data.

mod adapter;
mod bench;
mod generate;
mod gpu;
mod inspect;
mod quality;
mod rope;

pub use bench::{Bench, Output, RandomAdapters, RandomModel};
pub use generate::{Chat, Experts, Further, Logits, Router, Run, Sampling};
pub use gpu::Gpu;
pub use inspect::{Compile, Explain, Inspect};
pub use quality::{Perplexity, QuantizeFile};
pub use rope::{Rope, RopeScaling};

pub use adapter::{
    Adapter, AdapterCompress, AdapterConvert, AdapterInspect, AdapterMerge, MergeMethod,
};

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Runs language models on the machine at hand, with adapters injected at run time.
#[derive(Parser, Debug)]
#[command(
    name = "rusty",
    version,
    arg_required_else_help = true,
    propagate_version = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// More messages on stderr; twice for still more. RUST_LOG overrides.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Generate text for one prompt, streamed as it comes.
    Run(Run),
    /// Talk with a model, turn by turn.
    Chat(Chat),
    /// Write the logits of every position of a token list.
    Logits(Logits),
    /// Show what the compiler makes of a model: graph, passes, plan, totals.
    Explain(Explain),
    /// Write the kernels of a model for a device, which need not be at hand, as a package.
    Compile(Compile),
    /// Show what a model file holds and what it needs.
    Inspect(Inspect),
    /// Turn text into token ids.
    Tokenize(Tokenize),
    /// Inspect, merge, convert and compress adapters.
    #[command(subcommand)]
    Adapter(Adapter),
    /// Write a GGUF once more with its weights in other formats.
    Quantize(QuantizeFile),
    /// Measure how well a model expects a text, and how far another one is from it.
    Perplexity(Perplexity),
    /// Measure prefill and decode speed.
    Bench(Bench),
    /// List devices, and why absent ones are absent.
    Devices(Devices),
}

/// How a model is loaded and where it runs.
#[derive(Args, Debug, Clone)]
pub struct Load {
    /// auto, cpu, vulkan, metal, dx12, cuda or cuda:N.
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: String,
    /// Storage of keys and values.
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub kv: Kv,
    #[command(flatten)]
    pub gpu: Gpu,
    /// Quantize float weights at load.
    #[arg(long, value_enum)]
    pub quantize: Option<Quantize>,
    /// Context in tokens [default: the model's, at most 4096].
    #[arg(long, value_name = "TOKENS")]
    pub ctx: Option<usize>,
    /// Threads of the CPU device [default, and at most: all cores].
    #[arg(short, long, value_parser = threads)]
    pub threads: Option<usize>,
    /// An adapter: a PEFT folder, a LoRA GGUF, a packed file, or the name of one of the demo model's; may be repeated.
    #[arg(long = "adapter", value_name = "PATH[=WEIGHT]")]
    pub adapters: Vec<String>,
    /// How several adapters become one.
    #[arg(long, value_enum, default_value_t = AdapterMix::Sum, requires = "adapters", value_name = "MIX")]
    pub adapter_mix: AdapterMix,
    /// Precision of the adapters' tables.
    #[arg(long, value_enum, default_value_t = AdapterPrecision::Stored, value_name = "PRECISION")]
    pub adapter_precision: AdapterPrecision,
    /// Where prepared adapters are kept; `none`: nowhere [default: ~/.cache/rusty/adapters].
    #[arg(long, value_name = "DIR")]
    pub adapter_cache: Option<PathBuf>,
    /// Hold at most so many bytes of adapters in slots, and as many in the host's memory: what was used longest ago makes room
    /// and is read again when it is wanted [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = gpu::memory)]
    pub adapter_memory: Option<ByteSize>,
    /// Run a short test inference after loading.
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub rope: Rope,
}

/// Storage of keys and values.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kv {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Blocks of 32 codes of eight bits.
    #[value(name = "q8_0")]
    Q8_0,
    /// Blocks of 32 codes of four bits.
    #[value(name = "q4_0")]
    Q4_0,
}

/// How several adapters become one.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterMix {
    /// The sum of what they change, each times its weight (PEFT's `cat`).
    Sum,
    /// PEFT's `linear`: sums of their factors, which all have one rank.
    Linear,
}

/// Precisions of adapters' tables.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterPrecision {
    /// As the file stores them.
    Stored,
    /// Half precision.
    F16,
    /// Q8_0.
    Int8,
    /// Q4_0.
    Int4,
}

/// Formats that float weights may be turned into at load.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantize {
    /// Q4_0.
    Int4,
    /// Q8_0.
    Int8,
}

/// Options of `rusty tokenize`.
#[derive(Args, Debug)]
pub struct Tokenize {
    /// MODEL, or TEXT for the built-in demo.
    #[arg(value_name = "MODEL", allow_hyphen_values = true)]
    pub first: String,
    /// The text.
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    pub second: Option<String>,
    /// Add the special tokens that the model expects around a text.
    #[arg(long)]
    pub special: bool,
    /// Print `{"ids":[...]}`.
    #[arg(long)]
    pub json: bool,
}

/// A number of threads: more than the cores only makes them wait for one another.
fn threads(text: &str) -> Result<usize, String> {
    let threads: usize = text.parse().map_err(|_| "is no number".to_string())?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    match threads {
        0 => Err("at least one thread is needed".into()),
        n if n > cores => Err(format!("this process may use {cores} cores")),
        n => Ok(n),
    }
}

/// Options of `rusty devices`.
#[derive(Args, Debug)]
pub struct Devices {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
