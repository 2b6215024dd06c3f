//! The command line, as data.

mod adapter;
mod gpu;
mod inspect;
mod quality;
mod rope;

pub use gpu::Gpu;
pub use inspect::{Compile, Explain, Inspect};
pub use quality::{Perplexity, QuantizeFile};
pub use rope::{Rope, RopeScaling};

pub use adapter::{
    Adapter, AdapterCompress, AdapterConvert, AdapterInspect, AdapterMerge, MergeMethod,
};

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
    /// auto, cpu, vulkan, metal, dx12 or cuda.
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
    /// Threads of the CPU device [default: all cores].
    #[arg(short, long, value_parser = threads)]
    pub threads: Option<usize>,
    /// An adapter: a PEFT folder, a LoRA GGUF, or the name of one of the demo model's; may be repeated.
    #[arg(long = "adapter", value_name = "PATH[=WEIGHT]")]
    pub adapters: Vec<String>,
    /// Precision of the adapters' tables.
    #[arg(long, value_enum, default_value_t = AdapterPrecision::Stored, value_name = "PRECISION")]
    pub adapter_precision: AdapterPrecision,
    /// Where prepared adapters are kept; `none`: nowhere [default: ~/.cache/rusty/adapters].
    #[arg(long, value_name = "DIR")]
    pub adapter_cache: Option<PathBuf>,
    /// Run a short test inference after loading.
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub rope: Rope,
}

/// Who answers each message.
#[derive(Args, Debug, Clone)]
pub struct Experts {
    /// Choose an expert for each message: from a folder of experts, or `demo` for the demo model's.
    #[arg(long, value_name = "DIR", conflicts_with = "adapters")]
    pub experts: Option<String>,
    /// How experts are chosen.
    #[arg(long, value_enum, default_value_t = Router::Keywords, requires = "experts")]
    pub router: Router,
}

/// Ways to choose an expert.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// By the words of the message.
    Keywords,
    /// By what the model makes of the message, compared with examples.
    Embedding,
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

/// How tokens are chosen.
#[derive(Args, Debug, Clone)]
pub struct Sampling {
    /// Tokens to generate at most.
    #[arg(
        short = 'n',
        long = "max-tokens",
        default_value_t = 256,
        value_name = "N"
    )]
    pub max_tokens: usize,
    /// Temperature; 0 is greedy.
    #[arg(long = "temp", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Keep the K most likely tokens; 0: all.
    #[arg(long, default_value_t = 0)]
    pub top_k: usize,
    /// Keep the most likely tokens up to this probability.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Divide the logits of tokens of prompt and answer by this.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub repetition_penalty: f32,
    /// Subtract this from the logits of tokens of the answer.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtract this from a token's logit for each time it is in the answer.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Seed of the random choice.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Stop before this text; may be repeated.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

/// Options of `rusty run`.
#[derive(Args, Debug)]
pub struct Run {
    /// GGUF file, model folder or hub id [default: the built-in demo].
    #[arg(short, long)]
    pub model: Option<String>,
    /// The prompt; standard input where neither is given.
    #[arg(value_name = "PROMPT", conflicts_with = "prompt_flag")]
    pub prompt: Option<String>,
    /// The prompt.
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "PROMPT",
        allow_hyphen_values = true
    )]
    pub prompt_flag: Option<String>,
    /// A system message.
    #[arg(long, conflicts_with = "raw")]
    pub system: Option<String>,
    /// Give the prompt to the model as it is, without its chat template.
    #[arg(long)]
    pub raw: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub experts: Experts,
    #[command(flatten)]
    pub load: Load,
    #[command(flatten)]
    pub sampling: Sampling,
}

/// Options of `rusty chat`.
#[derive(Args, Debug)]
pub struct Chat {
    /// GGUF file, model folder or hub id [default: the built-in demo].
    pub model: Option<String>,
    /// A system message.
    #[arg(long)]
    pub system: Option<String>,
    #[command(flatten)]
    pub experts: Experts,
    #[command(flatten)]
    pub load: Load,
    #[command(flatten)]
    pub sampling: Sampling,
}

/// Options of `rusty logits`.
#[derive(Args, Debug)]
pub struct Logits {
    /// GGUF file, model folder or hub id [default: the built-in demo].
    pub model: Option<String>,
    /// Token ids.
    #[arg(long, value_delimiter = ',', required = true, value_name = "ID,ID,...")]
    pub tokens: Vec<u32>,
    /// Safetensors file to write: `logits`, F32 `[T, vocab]`.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub load: Load,
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

/// A model made up for measuring and planning.
#[derive(Args, Debug)]
pub struct RandomModel {
    /// Random weights of real shapes instead of a file: qwen3-0.6b, llama-3.2-1b, mistral-7b, llama-3-8b, and small
    /// ones, llama-tiny, qwen3-tiny, qwen3moe-tiny, deepseek-tiny.
    #[arg(long, value_name = "SHAPE", conflicts_with = "model")]
    pub random: Option<String>,
    /// Format of random weights.
    #[arg(long, default_value = "q4_0", requires = "random")]
    pub format: String,
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
    /// Random adapters on all sites, one per sequence in turn.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub adapters: usize,
    /// Rank of random adapters.
    #[arg(long, default_value_t = 16, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub adapter_rank: u32,
    /// Precision of random adapters.
    #[arg(long, value_enum, default_value_t = AdapterPrecision::F16, value_name = "PRECISION")]
    pub adapter_precision: AdapterPrecision,
    /// Repetitions.
    #[arg(short, long, default_value_t = 5)]
    pub repetitions: usize,
    /// Threads of the CPU device.
    #[arg(short, long, value_parser = threads)]
    pub threads: Option<usize>,
    /// Device.
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
