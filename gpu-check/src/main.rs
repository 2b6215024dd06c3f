//! The check of a machine's GPUs in one call: conformance, models, and speeds beside PyTorch; a short table last.
//!
//! `cargo xtask gpu-pack` packs this program with the test programs and their data. The machine needs a driver (and NVRTC
//! for CUDA) but neither a toolchain nor a network; PyTorch is asked where there is a `python3` with torch and
//! transformers. Models have real shapes and random weights, which are made there.
//!
//! What matters most runs first, CUDA before Vulkan; what no time is left for is said to have not run, and `--only` asks
//! for it. All output of programs goes to log.txt, findings to report.json and table.txt.

mod bandwidth;
mod clock;
mod devices;
mod job;
mod outcome;
mod pytorch;
mod report;
mod speeds;
mod tests;

use anyhow::{Context, Result};
use clap::Parser;
use clock::Clock;
use job::Job;
use outcome::{Found, Outcome, Stage};
use std::path::PathBuf;
use std::process::ExitCode;

/// Checks the GPUs of this machine.
#[derive(Parser)]
struct Options {
    /// Minutes after which nothing more is started, and what runs is stopped.
    #[arg(long, default_value_t = 9.5)]
    minutes: f64,
    /// Folder for log.txt, report.json and table.txt [default: the one that the variable OUT names, or gpu-check-out].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Only these stages; may be repeated [default: all].
    #[arg(long, value_enum)]
    only: Vec<Stage>,
    /// Small models and one test: tries the check itself.
    #[arg(long)]
    small: bool,
}

/// Where things lie and how long there is.
struct Check {
    /// The bundle: this program, `tests/` and `data/`.
    bundle: PathBuf,
    out: PathBuf,
    clock: Clock,
    small: bool,
}

impl Check {
    /// Runs a stage on a device.
    fn run(&self, stage: Stage, device: &devices::Present) -> Vec<Outcome> {
        match stage {
            Stage::Bandwidth => vec![
                self.bandwidth(device, "copies", Job::Copies),
                self.bandwidth(device, "uploads", Job::Uploads),
            ],
            Stage::Conformance => tests::run(self, device),
            Stage::Speeds | Stage::More => speeds::run(self, stage, device),
            Stage::Eager | Stage::Compiled => pytorch::run(self, stage),
        }
    }

    fn bandwidth(&self, device: &devices::Present, what: &str, job: fn(String) -> Job) -> Outcome {
        let found = match job::start(self, what, &job(device.choice.clone()), 30) {
            Ok(said) => match said.out.trim().parse() {
                Ok(rate) => Found::Bandwidth(rate),
                Err(_) => Found::Error(said.reason()),
            },
            Err(error) => Found::Error(format!("{error:#}")),
        };
        Outcome::new(Stage::Bandwidth, &device.choice, what, found)
    }
}

fn main() -> Result<ExitCode> {
    if let Ok(job) = std::env::var(job::JOB) {
        return job::run(&job).map(|()| ExitCode::SUCCESS);
    }
    let options = Options::parse();
    let program = std::env::current_exe().context("the path of this program")?;
    let bundle = program.parent().context("the folder of this program")?;
    let named = || std::env::var_os("OUT").map_or("gpu-check-out".into(), PathBuf::from);
    let out = options.out.unwrap_or_else(named);
    std::fs::create_dir_all(&out).with_context(|| format!("{}: cannot be made", out.display()))?;
    let check = Check {
        bundle: bundle.to_path_buf(),
        clock: Clock::new(options.minutes, &out),
        out,
        small: options.small,
    };
    let found = devices::all();
    for line in &found.lines {
        println!("{line}");
    }
    let mut outcomes = vec![];
    for (stage, device) in order(&found.present) {
        if options.only.is_empty() || options.only.contains(&stage) {
            println!("== {stage:?} {}, {}", device.choice, check.clock);
            for outcome in check.run(stage, device) {
                println!("{}", outcome.line());
                outcomes.push(outcome);
            }
            // Whatever happens later, this much is known.
            report::write(&check.out, &found, &outcomes)?;
        }
    }
    println!("\n{}", report::table(&found, &outcomes));
    let failed = outcomes.iter().any(Outcome::failed) || found.present.is_empty();
    Ok(ExitCode::from(u8::from(failed)))
}

/// Stages in order: of the first device what is most telling, then PyTorch, then the other devices, then the rest.
fn order(present: &[devices::Present]) -> Vec<(Stage, &devices::Present)> {
    let mut order = vec![];
    for (i, device) in present.iter().enumerate() {
        let own = [Stage::Bandwidth, Stage::Speeds, Stage::Conformance];
        order.extend(own.map(|stage| (stage, device)));
        if i == 0 {
            order.extend([Stage::Eager, Stage::Compiled].map(|stage| (stage, device)));
        }
    }
    order.extend(present.iter().map(|device| (Stage::More, device)));
    order
}
