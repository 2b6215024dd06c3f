//! What touches a device runs in a process of its own: a fault of a driver ends no more than that. What it finds it tells
//! line by line, as JSON, so that nothing of it is lost where it is stopped.

use crate::clock::{Said, scratch};
use crate::model::{self, Model};
use crate::opening::{self, Opening};
use crate::outcome::Found;
use crate::{Check, devices};
use anyhow::{Context, Result};
use criterion::Criterion;
use rusty_backend::{Device, GpuDevice};
use rusty_benches::fusion::{Effort, Peers};
use rusty_benches::kernels::{Bounds, Sizes};
use rusty_benches::python::Python;
use rusty_benches::{copies, fusion, kernels, vocabulary};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing_subscriber::filter::LevelFilter;

/// The variable that tells a process of this program its work.
pub const JOB: &str = "GPU_CHECK_JOB";

/// Seconds for which there must be time, or nothing is started.
const LEAST: u64 = 5;

/// What such a process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Looks for GPUs: tells [`devices::All`].
    Devices,
    /// Copies on a device: tells bytes per second.
    Copies(String),
    /// Copies to a device: tells bytes per second.
    Uploads(String),
    /// A model's speed: tells [`model::Row`]s.
    Model(Model),
    /// Writes a model of a shape with a vocabulary: tells nothing of use.
    Save { shape: String, path: PathBuf },
    /// Opens a model: tells the seconds from its start to a token.
    Opening(Opening),
    /// Kernels one by one: tells [`kernels::Row`]s.
    Kernels { device: String, small: bool },
    /// Chains of operations: tells [`fusion::Row`]s.
    Fusion {
        device: String,
        small: bool,
        /// Burn's program, where it is asked.
        burn: Option<PathBuf>,
        /// Whether beside PyTorch.
        pytorch: bool,
    },
}

/// Runs the job that the variable holds; warnings, as of kernels that the device does not take, go to standard error.
pub fn run(job: &str) -> Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match serde_json::from_str(job)? {
        Job::Devices => tell(&devices::all())?,
        Job::Copies(device) => tell(&copies::inside(&*gpu(&device)?)?)?,
        Job::Uploads(device) => tell(&copies::to_device(&*gpu(&device)?)?)?,
        Job::Model(model) => model::measured(&model, &mut |row| tell(&row))?,
        Job::Save { shape, path } => {
            vocabulary::save(&shape, "q4_0", &path);
            tell(&"saved")?;
        }
        Job::Opening(opening) => tell(&opening::opened(&opening)?)?,
        Job::Kernels { device, small } => measure_kernels(&device, small)?,
        Job::Fusion {
            device,
            small,
            burn,
            pytorch,
        } => compare_chains(&device, small, burn.as_deref(), pytorch)?,
    }
    Ok(())
}

/// Writes a line of JSON.
fn tell(found: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(found)?);
    Ok(())
}

fn gpu(choice: &str) -> Result<Arc<dyn GpuDevice>> {
    let device = Device::open(&choice.parse()?, None)?;
    Ok(device.gpu().context("is no GPU")?.clone())
}

fn measure_kernels(choice: &str, small: bool) -> Result<()> {
    let device = Device::open(&choice.parse()?, None)?;
    let bounds = Bounds::of(&device)?;
    let sizes = match small {
        true => Sizes::SMALL,
        false => Sizes::of(&device),
    };
    let mut told = Ok(());
    kernels::measure(device, bounds, sizes, Criterion::default(), &mut |row| {
        if told.is_ok() {
            told = tell(&row);
        }
    });
    told
}

fn compare_chains(choice: &str, small: bool, burn: Option<&Path>, pytorch: bool) -> Result<()> {
    let device = Device::open(&choice.parse()?, None)?;
    let mut peers = Peers::default();
    if let Some(burn) = burn {
        peers = peers.with_burn(burn);
    }
    if pytorch {
        peers = peers.with_pytorch(&Python::named(crate::pytorch::PROGRAM));
    }
    let only = if small { "norm" } else { "" };
    // One process answers for all chains, so that there is no second round in which it might be slower.
    let effort = Effort {
        rounds: 1,
        warm_up: 0.1,
        timed: 0.15,
    };
    let mut told = Ok(());
    fusion::compare(choice, &device, only, effort, &mut peers, &mut |row| {
        if told.is_ok() {
            told = tell(&row);
        }
    });
    told
}

/// Runs a job in a process of its own.
///
/// # Errors
/// The process could not be started.
pub fn start(check: &Check, name: &str, job: &Job, limit: u64) -> Result<Said> {
    let mut command = check.command(&std::env::current_exe()?);
    command.env(JOB, serde_json::to_string(job)?);
    command.env("CRITERION_HOME", scratch("criterion"));
    check.clock.run(name, &mut command, limit)
}

/// What a job tells, and why it is not more.
pub fn findings<T: DeserializeOwned>(
    check: &Check,
    name: &str,
    job: &Job,
    limit: u64,
) -> (Vec<T>, Option<Found>) {
    if check.clock.left().as_secs() < LEAST {
        return (vec![], Some(Found::NoTime));
    }
    let said = match start(check, name, job, limit) {
        Ok(said) => said,
        Err(error) => return (vec![], Some(Found::Error(format!("{error:#}")))),
    };
    let lines = said.out.lines();
    let rows: Vec<T> = lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let shortfall = said.shortfall();
    let silent = || Found::Error("it said nothing".into());
    let missing = rows.is_empty().then(silent);
    (rows, shortfall.or(missing))
}
