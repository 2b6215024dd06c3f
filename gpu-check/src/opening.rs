//! From the start of a process to its first token: once as a user's first time is, and again with what that left in the
//! caches.

use crate::Check;
use crate::clock::scratch;
use crate::devices::Present;
use crate::job::{self, Job};
use crate::outcome::{Found, Outcome, Stage};
use anyhow::{Context, Result};
use rusty_engine::{Engine, EngineOptions, Prompt, Request};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Starts after the first.
const LATER: usize = 3;
/// Seconds that a start may take.
const LIMIT: u64 = 60;
/// A short prompt.
const TOKENS: [u32; 4] = [7, 77, 177, 277];

/// What a process opens, and when it was started: time since the epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Opening {
    path: PathBuf,
    device: String,
    started: Duration,
}

/// Opens the model as `rusty run` does, and gives the seconds from the start to the first token of an answer.
pub fn opened(job: &Opening) -> Result<f64> {
    let file = rusty_loader::open(&job.path)?;
    let options = EngineOptions {
        device: job.device.parse()?,
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*file, &options)?;
    let request = Request {
        max_tokens: 1,
        stop_at_end: false,
        ..Request::new(Prompt::Tokens(TOKENS.to_vec()))
    };
    let mut session = engine.session();
    let mut answer = session.generate(&request)?;
    answer.next().context("no token came")??;
    Ok(now().saturating_sub(job.started).as_secs_f64())
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Starts on a device, with a model that is written first.
pub fn run(check: &Check, device: &Present) -> Vec<Outcome> {
    let shape = match check.small {
        true => "qwen3-tiny",
        false => "qwen3-0.6b",
    };
    let path = scratch("gguf");
    let save = Job::Save {
        shape: shape.into(),
        path: path.clone(),
    };
    let (_, lacking) = job::findings::<String>(check, "model", &save, LIMIT);
    let found = match lacking {
        None => starts(check, device, &path).unwrap_or_else(|reason| reason),
        Some(reason) => reason,
    };
    // Where it was never written there is nothing to remove.
    let _ = std::fs::remove_file(&path);
    let what = format!("{shape} q4_0 start");
    vec![Outcome::new(Stage::Start, &device.choice, what, found)]
}

fn starts(check: &Check, device: &Present, path: &Path) -> Result<Found, Found> {
    let start = || {
        let opening = Job::Opening(Opening {
            path: path.into(),
            device: device.choice.clone(),
            started: now(),
        });
        let (seconds, lacking) = job::findings::<f64>(check, "start", &opening, LIMIT);
        let missing = || Found::Error("it said nothing".into());
        seconds
            .last()
            .copied()
            .ok_or(lacking.unwrap_or_else(missing))
    };
    let first = start()?;
    let mut later = f64::INFINITY;
    for _ in 0..LATER {
        later = later.min(start()?);
    }
    Ok(Found::Start { first, later })
}
