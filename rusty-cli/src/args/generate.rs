//! Options of the commands that generate, and of how they do.

use super::Load;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

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
    /// Overwrite the file where it exists.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub load: Load,
}

/// Who answers each message.
#[derive(Args, Debug, Clone)]
pub struct Experts {
    /// Choose an expert for each message: from a folder of experts, or `demo` for the demo model's.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["adapters", "adapter_mix"])]
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
    #[arg(long = "temp", default_value_t = 0.0)]
    pub temperature: f32,
    /// Keep the K most likely tokens; 0: all.
    #[arg(long, default_value_t = 0)]
    pub top_k: usize,
    /// Keep the most likely tokens up to this probability.
    #[arg(long, default_value_t = 1.0)]
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one.
    #[arg(long, default_value_t = 0.0)]
    pub min_p: f32,
    /// Divide the logits of tokens of prompt and answer by this.
    #[arg(long, default_value_t = 1.0)]
    pub repetition_penalty: f32,
    /// Subtract this from the logits of tokens of the answer.
    #[arg(long, default_value_t = 0.0)]
    pub presence_penalty: f32,
    /// Subtract this from a token's logit for each time it is in the answer.
    #[arg(long, default_value_t = 0.0)]
    pub frequency_penalty: f32,
    #[command(flatten)]
    pub further: Further,
    /// Seed of the random choice.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Stop before this text; may be repeated.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

/// Further ways to choose among tokens, in the order in which they are applied; none of them is by default.
#[derive(Args, Debug, Clone)]
pub struct Further {
    /// Never say N tokens in a row that were there before.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub no_repeat_ngram: Option<u32>,
    /// Lower tokens that would prolong a repetition, by this times the base to the power of what it is longer than is allowed (DRY).
    #[arg(long, value_name = "X")]
    pub dry_multiplier: Option<f32>,
    /// The base.
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.75,
        requires = "dry_multiplier"
    )]
    pub dry_base: f32,
    /// Tokens that may be repeated.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        requires = "dry_multiplier"
    )]
    pub dry_allowed_length: usize,
    /// Tokens that are looked back.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        requires = "dry_multiplier"
    )]
    pub dry_last_n: usize,
    /// Keep the most typical tokens up to this probability.
    #[arg(long, value_name = "P")]
    pub typical_p: Option<f32>,
    /// Keep tokens that are at least this likely.
    #[arg(long, value_name = "P")]
    pub epsilon_cutoff: Option<f32>,
    /// Keep tokens that are likely enough beside the entropy of all.
    #[arg(long, value_name = "P")]
    pub eta_cutoff: Option<f32>,
    /// Keep tokens whose logits are within N standard deviations of the largest.
    #[arg(long, value_name = "N")]
    pub top_n_sigma: Option<f32>,
}
