//! The check of a machine's GPUs in one call: conformance, models, and speeds beside PyTorch; a summary last.
//!
//! `cargo xtask gpu-pack` packs this program with the test programs and their data. The machine needs a driver (and NVRTC
//! for CUDA) but neither a toolchain nor a network; PyTorch is asked where there is a `python3` with torch and
//! transformers. Models have real shapes and random weights, which are made there.
//!
//! What matters most runs first, CUDA before Vulkan, and no part may take the time of those behind it, who have what it leaves
//! (`parts.rs`); what no time is left for is said to be left out, and `--only` asks for it, with all the time there is. All output of programs goes
//! to log.txt, findings to report.json and table.txt.

mod clock;
mod devices;
mod job;
mod model;
mod opening;
mod outcome;
mod parts;
mod pytorch;
mod report;
mod single;
mod speeds;
mod summary;
mod tests;

use anyhow::{Context, Result};
use clap::Parser;
use clock::{Clock, scratch};
use devices::{All, Present};
use job::Job;
use outcome::{Found, Outcome, Stage};
use parts::Part;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Checks the GPUs of this machine.
#[derive(Parser)]
struct Options {
    /// Minutes after which nothing more is started, and what runs is stopped.
    #[arg(long, default_value_t = MINUTES)]
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

/// Minutes of a call, of which ten are the most: the rest is for ending.
const MINUTES: f64 = 9.5;

/// Seconds that looking for devices may take.
const LOOKING: u64 = 20;

/// Where things lie and how long there is.
#[derive(Clone)]
struct Check {
    /// The bundle: this program, `tests/`, `data/`, and `lib/` with libraries that the machine may lack.
    bundle: PathBuf,
    out: PathBuf,
    clock: Clock,
    small: bool,
    /// A folder for what programs and drivers keep of what they compiled; none: wherever they always keep it.
    caches: Option<PathBuf>,
}

/// The variables that name folders of such caches: Rusty's own, CUDA's, and those of Vulkan's drivers by Mesa and NVIDIA.
const CACHES: [&str; 4] = [
    "RUSTY_CACHE",
    "CUDA_CACHE_PATH",
    "MESA_SHADER_CACHE_DIR",
    "__GL_SHADER_DISK_CACHE_PATH",
];

impl Check {
    /// The same check that is over earlier.
    fn until(&self, end: Instant) -> Self {
        Self {
            clock: self.clock.until(end),
            ..self.clone()
        }
    }

    /// The same check with caches in a folder, where they are made.
    fn with_caches(&self, folder: &Path) -> Result<Self> {
        for name in CACHES {
            let path = folder.join(name);
            std::fs::create_dir_all(&path)
                .with_context(|| format!("{}: cannot be made", path.display()))?;
        }
        Ok(Self {
            caches: Some(folder.into()),
            ..self.clone()
        })
    }

    /// A program that finds the bundle's libraries. Vulkan's loader is loaded by its name, and where it is found is settled
    /// when a process starts; so whatever touches a device is a process of its own.
    fn command(&self, program: &Path) -> Command {
        const FOLDERS: &str = "LD_LIBRARY_PATH";
        let mut command = Command::new(program);
        let set = std::env::var_os(FOLDERS).filter(|set| !set.is_empty());
        let set: Vec<PathBuf> = set
            .iter()
            .flat_map(|set| std::env::split_paths(set))
            .collect();
        if let Ok(folders) = std::env::join_paths(set.into_iter().chain([self.bundle.join("lib")]))
        {
            command.env(FOLDERS, folders);
        }
        if let Some(folder) = &self.caches {
            command.envs(CACHES.map(|name| (name, folder.join(name))));
        }
        command
    }

    /// The GPUs there are.
    fn devices(&self) -> All {
        let (found, lacking) = job::findings::<All>(self, "devices", &Job::Devices, LOOKING);
        let reason = match lacking {
            Some(Found::Error(reason)) => reason,
            _ => "no time was left".into(),
        };
        found.into_iter().next().unwrap_or_else(|| All {
            present: vec![],
            lines: vec![format!("devices cannot be looked for: {reason}")],
        })
    }

    /// Runs a stage on a device.
    fn run(&self, part: &Part<'_>) -> Vec<Outcome> {
        let Part { stage, device, .. } = *part;
        match stage {
            Stage::Bandwidth => vec![
                self.bandwidth(device, "copies", Job::Copies),
                self.bandwidth(device, "uploads", Job::Uploads),
            ],
            Stage::Quick | Stage::Conformance => tests::run(self, stage, device),
            Stage::Speeds | Stage::More => speeds::run(self, part),
            Stage::Matmul | Stage::Eager | Stage::Compiled => pytorch::run(self, stage),
            Stage::Start => opening::run(self, device),
            Stage::Kernels => single::one_by_one(self, device),
            Stage::Fusion => single::chains(self, part),
        }
    }

    fn bandwidth(&self, device: &Present, what: &str, job: fn(String) -> Job) -> Outcome {
        let asked = job(device.choice.clone());
        let (rates, lacking) = job::findings::<f64>(self, what, &asked, 30);
        let missing = || Found::Error("it said nothing".into());
        let found = match rates.last() {
            Some(rate) => Found::Bandwidth(*rate),
            None => lacking.unwrap_or_else(missing),
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
        caches: None,
    };
    let found = check.devices();
    for line in &found.lines {
        println!("{line}");
    }
    let mut outcomes = vec![];
    let start = Instant::now();
    for part in parts::order(&found.present, check.clock.left()) {
        if options.only.is_empty() || options.only.contains(&part.stage) {
            // What was asked for may take all the time there is.
            let check = match options.only.is_empty() {
                true => check.until(start + part.until),
                false => check.clone(),
            };
            println!(
                "== {:?} {}, {}",
                part.stage, part.device.choice, check.clock
            );
            for outcome in check.run(&part) {
                println!("{}", outcome.line());
                outcomes.push(outcome);
            }
            // Whatever happens later, this much is known.
            report::write(&check.out, &found, &outcomes)?;
        }
    }
    // What only this run needed; whatever was never made need not go.
    let _ = std::fs::remove_dir_all(scratch("criterion"));
    println!("\n{}", summary::summary(&found, &outcomes));
    let failed = outcomes.iter().any(Outcome::failed) || found.present.is_empty();
    Ok(ExitCode::from(u8::from(failed)))
}
