//! Options of `rusty quantize` and `rusty perplexity`.

use super::{Kv, Load};
use clap::Args;
use std::path::PathBuf;

/// Options of `rusty quantize`.
#[derive(Args, Debug)]
pub struct QuantizeFile {
    /// GGUF to read, best one of floats: a file, a folder with one, or a hub id.
    #[arg(value_name = "IN")]
    pub source: String,
    /// GGUF file to write.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Format or mixture: q4_k_m, q8_0, iq4_xs, ...; a wrong name lists them.
    #[arg(short, long, value_name = "F")]
    pub format: String,
    /// Importance matrix as llama-imatrix writes it.
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Overwrite OUT where it exists.
    #[arg(long)]
    pub force: bool,
}

/// Options of `rusty perplexity`.
#[derive(Args, Debug)]
pub struct Perplexity {
    /// GGUF file, model folder or hub id.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Text to expect.
    #[arg(value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens that are read together; the second half of them counts.
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(4..))]
    pub chunk: usize,
    /// Chunks at most [default: all].
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub chunks: Option<usize>,
    /// Measure how far this model is from MODEL, too: KL(MODEL || OTHER).
    #[arg(long, value_name = "OTHER")]
    pub kl_divergence: Option<String>,
    /// Device of the other model [default: that of MODEL]; MODEL is the other one where none is named.
    #[arg(long, value_name = "DEVICE")]
    pub kl_device: Option<String>,
    /// Storage of keys and values of the other model [default: that of MODEL]; MODEL is the other one where none is
    /// named.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub kl_kv: Option<Kv>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: Load,
}
