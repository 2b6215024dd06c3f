//! Options of rotary scaling.

use clap::{Args, ValueEnum};

/// Rotary scaling instead of the file's.
#[derive(Args, Debug, Clone)]
pub struct Rope {
    /// Stretch the context by this kind of rotary scaling instead of the file's.
    #[arg(long, value_enum, value_name = "KIND")]
    pub rope_scaling: Option<RopeScaling>,
    /// How many times the context is stretched [default: the file's].
    #[arg(long, value_name = "FACTOR", requires = "rope_scaling")]
    pub rope_factor: Option<f64>,
}

/// Kinds of rotary scaling.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    /// As the model was trained.
    None,
    /// All frequencies divided by the factor.
    Linear,
    /// A base that grows with the text.
    Ntk,
    /// YaRN.
    Yarn,
    /// As Llama 3.1 scales.
    Llama3,
    /// LongRoPE, by the file's divisors.
    Longrope,
    /// YaRN from 32k to 128k tokens, for Qwen3.
    #[value(name = "yarn-128k")]
    Yarn128k,
}
