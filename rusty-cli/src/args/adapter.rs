//! The command line of `rusty adapter`.

use super::AdapterPrecision;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// What `rusty adapter` does.
#[derive(Subcommand, Debug)]
pub enum Adapter {
    /// Show what an adapter changes, and what it takes.
    Inspect(AdapterInspect),
    /// Merge adapters into a full model.
    Merge(AdapterMerge),
    /// Write an adapter as a PEFT folder, or as a GGUF where OUT ends in .gguf.
    Convert(AdapterConvert),
    /// Write a smaller adapter, and measure what that costs.
    Compress(AdapterCompress),
}

/// Options of `rusty adapter inspect`.
#[derive(Args, Debug)]
pub struct AdapterInspect {
    /// A PEFT folder, an adapter file, or the name of one of the demo's.
    pub adapter: String,
    /// The model it is for [default: the built-in demo].
    #[arg(short, long)]
    pub model: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `rusty adapter merge`.
#[derive(Args, Debug)]
pub struct AdapterMerge {
    /// The model: a GGUF file, a folder or a hub id. It must be given: the built-in demo has no file to copy.
    #[arg(short, long)]
    pub model: Option<String>,
    /// An adapter; may be repeated.
    #[arg(long = "adapter", value_name = "PATH[=WEIGHT]", required = true)]
    pub adapters: Vec<String>,
    /// How changes become one.
    #[arg(long, value_enum, default_value_t = MergeMethod::Linear)]
    pub method: MergeMethod,
    /// Share of each change that TIES and DARE keep [default: 0.5].
    #[arg(long)]
    pub density: Option<f32>,
    /// Seed of DARE's choice.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// What is written: a GGUF file for one or for a folder with one, else a folder.
    pub out: PathBuf,
}

/// Ways to merge.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeMethod {
    /// Weighted sum.
    Linear,
    /// Spherical interpolation between two models.
    Slerp,
    /// Largest values of agreeing signs.
    Ties,
    /// Random values, scaled up.
    Dare,
}

/// Options of `rusty adapter convert`.
#[derive(Args, Debug)]
pub struct AdapterConvert {
    /// A PEFT folder, an adapter file, or the name of one of the demo's.
    pub adapter: String,
    /// What is written: a folder, or a file that ends in .gguf.
    pub out: PathBuf,
    /// The model it is for [default: the built-in demo].
    #[arg(short, long)]
    pub model: Option<String>,
}

/// Options of `rusty adapter compress`.
#[derive(Args, Debug)]
pub struct AdapterCompress {
    /// A PEFT folder, an adapter file, or the name of one of the demo's.
    pub adapter: String,
    /// The file to write; ends in .safetensors.
    pub out: PathBuf,
    /// The model it is for [default: the built-in demo].
    #[arg(short, long)]
    pub model: Option<String>,
    /// Share of single values to take out.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub sparsity: f32,
    /// Share of blocks of 32 values to take out.
    #[arg(long, default_value_t = 0.0, value_parser = share, conflicts_with = "sparsity")]
    pub block_sparsity: f32,
    /// Precision of what is left.
    #[arg(long, value_enum, default_value_t = AdapterPrecision::Int4)]
    pub precision: AdapterPrecision,
    /// Prompts by which the cost is measured, one per line [default: built-in ones].
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
}

fn share(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("a share is from 0 up to, but not including, 1".into()),
    }
}
