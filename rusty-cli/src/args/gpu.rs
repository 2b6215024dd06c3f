//! Options of GPUs; CPUs take no notice of them.

use bytesize::ByteSize;
use clap::Args;
use std::path::PathBuf;

/// How a GPU is used.
#[derive(Args, Debug, Clone, Default)]
pub struct Gpu {
    /// Use at most so much of a GPU's memory, for example 6GB or 5.5GiB: weights that do not fit stream from the file,
    /// slower [default: all that is free].
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    pub gpu_memory: Option<ByteSize>,
    /// Folder that `rusty compile` wrote, for a target all of whose facts the GPU has: kernels are planned for that and taken from there,
    /// and no choices among them are measured.
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Multiply in single precision where a GPU would round inputs to bytes (few rows), or inputs or weights to bf16 or half precision (more),
    /// or a CPU inputs to bf16 (AVX-512 BF16, weights in BF16).
    #[arg(long)]
    pub single_precision: bool,
    /// Take kernels as guessed, instead of measuring choices where a model first runs on a GPU.
    #[arg(long)]
    pub no_autotune: bool,
}

/// An amount of memory.
pub(super) fn memory(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>() {
        Ok(size) if size.as_u64() > 0 => Ok(size),
        _ => Err("write a number of bytes, or one with its unit, as 6GB or 5.5GiB".into()),
    }
}
