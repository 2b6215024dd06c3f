//! NEON where this machine has none: the CPU's kernels built for 64-bit Arm and run by QEMU's emulator of programs.

use crate::{apt, cargo, run};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Where Debian's cross compiler has the libraries of the other machine.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Tests by the start of their names: kernels against plain code, and models against the oracle and others' numbers. What they would
/// run on a GPU runs on the emulated CPU once more. Rows that are shortened are rows of the same kernels.
const TESTS: [&str; 5] = [
    "cpu::",
    "goldens::",
    "caches::",
    "batching::",
    "experts::experts_do_not",
];
/// Those of them that are left out: what holds GPUs to unrounded inputs, as CPUs do not multiply blocks, and what no instruction set
/// changes where logits are right.
const LEFT_OUT: [&str; 6] = [
    "on_a_gpu",
    "nvfp4",
    "quantized_checkpoints",
    "greedy_tokens",
    "larger_than_memory",
    "memory_is_stated",
];

/// Builds the compiler's tests for Arm and runs those of CPUs, where an emulator can be had; says so where not.
pub fn test() -> Result<()> {
    if cfg!(target_arch = "aarch64") {
        println!("   this machine's own tests are of NEON");
        return Ok(());
    }
    if let Err(error) = ensure_tools() {
        println!("   no emulator of Arm, so NEON is not checked ({error:#})");
        return Ok(());
    }
    let runner = format!("{EMULATOR} -L {LIBRARIES}");
    let mut arguments = vec!["test", "--target", TARGET, "--package", "rusty-compiler"];
    // Kernels for GPUs are the same everywhere.
    arguments.extend(["--no-default-features", "--quiet", "--no-fail-fast", "--"]);
    arguments.extend(TESTS);
    arguments.extend(LEFT_OUT.iter().flat_map(|name| ["--skip", name]));
    cargo(
        &arguments,
        &[
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &runner),
            ("CC_aarch64_unknown_linux_gnu", LINKER),
            ("RUSTY_TEST_GPU", "cpu"),
            ("INSTA_UPDATE", "no"),
        ],
    )
}

fn ensure_tools() -> Result<()> {
    let missing = |program: &str| !Path::new("/usr/bin").join(program).exists();
    let lacks = missing(EMULATOR) || missing(LINKER) || !Path::new(LIBRARIES).exists();
    if lacks && !apt::is_there() {
        bail!("install {EMULATOR} and {LINKER}");
    }
    run(Command::new("rustup").args(["target", "add", TARGET])).context("rustup adds no target")?;
    if lacks {
        apt::install(&[
            "qemu-user",
            "gcc-aarch64-linux-gnu",
            "libc6-dev-arm64-cross",
        ])?;
    }
    Ok(())
}
