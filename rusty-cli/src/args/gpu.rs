//! Options of GPUs; CPUs take no notice of them.

use bytesize::ByteSize;
use clap::Args;
use std::path::PathBuf;

/// How a GPU is used.
#[derive(Args, Debug, Clone, Default)]
pub struct Gpu {
    /// Use at most so much of a GPU's memory, for example 6GB or 5.5GiB: weights that do not fit stream from the file,
    /// slower [default: all that is free].
    #[arg(long, value_name = "BYTES")]
    pub gpu_memory: Option<ByteSize>,
    /// Folder that `rusty compile` wrote, for a target all of whose facts the GPU has: kernels are planned for that and taken from there,
    /// and no choices among them are measured.
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Multiply in single precision where a GPU would round inputs to bytes (few rows) or to bf16 (more).
    #[arg(long)]
    pub single_precision: bool,
    /// Take kernels as guessed, instead of measuring choices where a model first runs on a GPU.
    #[arg(long)]
    pub no_autotune: bool,
}
