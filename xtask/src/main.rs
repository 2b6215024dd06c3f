//! Tasks of the workspace, run as `cargo xtask TASK`.
//!
//! `test` is what CI runs: it sets up what tests need, then checks formatting, layering, licences, lints and
//! documentation and runs every test. Each step is also a task of its own.

mod apt;
mod cxx;
mod gguf_package;
mod gpu_pack;
mod layers;
mod licences;
mod neon;
mod nvrtc;
mod pip;
mod sass;
mod vulkan;

use anyhow::{Context, Result, bail};
use std::process::Command;
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask TASK

  test       set up, then everything below (what CI runs)
  setup      install a software Vulkan device, g++, NVRTC and the gguf package where they are missing
  fmt        check formatting
  layers     check that each crate uses only crates below it
  licences   check the licences of all dependencies
  clippy     lint, warnings are errors
  doc        build the documentation, warnings are errors
  unit       run all tests
  neon       run the CPU's tests for 64-bit Arm in an emulator, where one can be installed

  gpu-pack   build and pack target/gpu-check.tar.xz, which checks the GPUs of another machine

  sass SHAPE FORMAT...   count the instructions of CUDA kernels' inner loops: `sass llama-3-8b q4_0 q4_k`";

type Task = (&'static str, fn() -> Result<()>);

const STEPS: &[Task] = &[
    ("setup", setup),
    ("fmt", fmt),
    ("layers", layers::check),
    ("licences", licences::check),
    ("clippy", clippy),
    ("doc", doc),
    ("unit", unit),
    ("neon", neon::test),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => run_all(),
        ["gpu-pack"] => gpu_pack::pack(),
        ["sass", shape, ref formats @ ..] if !formats.is_empty() => sass::print(shape, formats),
        [name] => match STEPS.iter().find(|(task, _)| *task == name) {
            Some(step) => run_step(step).map(drop),
            None => bail!("no task '{name}'\n{USAGE}"),
        },
        _ => bail!("{USAGE}"),
    }
}

/// Behind every step stands what all so far took, so that the end of a long log says where the time went.
fn run_all() -> Result<()> {
    let mut took = String::new();
    for step in STEPS {
        let seconds = run_step(step)?;
        took += &format!(" {} {seconds:.0} s,", step.0);
        println!("== took{}", took.trim_end_matches(','));
    }
    println!("all steps passed");
    Ok(())
}

/// Runs a step and says how many seconds it took.
fn run_step((name, task): &Task) -> Result<f64> {
    println!("== {name}");
    let start = Instant::now();
    task().with_context(|| format!("{name} failed; `cargo xtask {name}` runs it alone"))?;
    let seconds = start.elapsed().as_secs_f64();
    println!("== {name}: ok in {seconds:.0} s");
    Ok(seconds)
}

fn setup() -> Result<()> {
    vulkan::ensure_device()?;
    cxx::ensure()?;
    gguf_package::ensure()?;
    nvrtc::ensure_compiler()
}

fn fmt() -> Result<()> {
    cargo(&["fmt", "--all", "--check"], &[])
}

fn clippy() -> Result<()> {
    cargo(
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        &[],
    )
}

fn doc() -> Result<()> {
    cargo(
        &["doc", "--workspace", "--no-deps", "--quiet"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )
}

fn unit() -> Result<()> {
    // Snapshots are compared, never rewritten, by the test command.
    let cache = root().join("target/test-cache").display().to_string();
    let mut environment = vec![("INSTA_UPDATE", "no".to_string()), ("RUSTY_CACHE", cache)];
    if let Some(folder) = nvrtc::library_folder() {
        environment.push(("RUSTY_NVRTC", folder.display().to_string()));
    }
    let environment: Vec<_> = environment.iter().map(|(k, v)| (*k, v.as_str())).collect();
    // Every failure is worth knowing: a run on another machine may be long to come by.
    cargo(
        &["test", "--workspace", "--quiet", "--no-fail-fast"],
        &environment,
    )
}

/// Runs cargo in the workspace's root with extra environment.
fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    run(Command::new(cargo)
        .args(arguments)
        .envs(environment.iter().copied()))
}

/// Runs a command to its end; a failure names it.
fn run(command: &mut Command) -> Result<()> {
    let status = command
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// The workspace's root.
fn root() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
