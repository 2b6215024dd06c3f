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
        // As `rusty run` without adapters: kernels for them are as many again.
        adapter_slots: 0,
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

/// Starts on a device, with a model that is written first and caches in which nothing is yet.
pub fn run(check: &Check, device: &Present) -> Vec<Outcome> {
    let shape = match check.small {
        true => "qwen3-tiny",
        false => "qwen3-0.6b",
    };
    let folder = scratch("start");
    let (seconds, lacking) = match check.with_caches(&folder) {
        Ok(check) => starts(&check, device, shape, &folder.join("model.gguf")),
        Err(error) => (vec![], Some(Found::Error(format!("{error:#}")))),
    };
    // With what a writer that was stopped has left there. Where it was never made there is nothing to remove.
    let _ = std::fs::remove_dir_all(&folder);
    let what = format!("{shape} q4_0 start");
    outcomes(&device.choice, &what, &seconds, lacking)
}

/// The seconds of each start, and why there are not more of them.
fn starts(check: &Check, device: &Present, shape: &str, path: &Path) -> (Vec<f64>, Option<Found>) {
    let save = Job::Save {
        shape: shape.into(),
        path: path.into(),
    };
    let (_, lacking) = job::findings::<String>(check, "model", &save, LIMIT);
    let mut seconds: Vec<f64> = vec![];
    if lacking.is_some() {
        return (seconds, lacking);
    }
    for _ in 0..=LATER {
        let opening = Job::Opening(Opening {
            path: path.into(),
            device: device.choice.clone(),
            started: now(),
        });
        let (told, lacking) = job::findings::<f64>(check, "start", &opening, LIMIT);
        seconds.extend(told.last());
        if lacking.is_some() {
            return (seconds, lacking);
        }
    }
    (seconds, None)
}

/// What is known of starts, and what is not.
fn outcomes(device: &str, what: &str, seconds: &[f64], lacking: Option<Found>) -> Vec<Outcome> {
    let outcome = |what: String, found| Outcome::new(Stage::Start, device, what, found);
    let known = seconds.split_first().map(|(first, later)| Found::Start {
        first: *first,
        later: later.iter().copied().reduce(f64::min),
    });
    let rest = match known {
        Some(_) => format!("{what}, later"),
        None => what.into(),
    };
    let known = known.map(|found| outcome(what.into(), found));
    let lacking = lacking.map(|reason| outcome(rest, reason));
    known.into_iter().chain(lacking).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_stays_where_no_time_is_left_for_more() {
        let lines = |seconds: &[f64], lacking| {
            let all = outcomes("cuda", "m start", seconds, lacking);
            let lines = all.iter().map(|o| format!("{}: {}", o.what, o.found));
            lines.collect::<Vec<_>>()
        };
        let late = "m start, later: left out: no time";
        assert_eq!(
            lines(&[3.0], Some(Found::NoTime)),
            ["m start: a token after 3.00 s", late]
        );
        let best = "m start: a token after 3.00 s, then after 0.50 s (aim: 1 s)";
        assert_eq!(lines(&[3.0, 0.75, 0.5, 0.625], None), [best]);
        assert_eq!(lines(&[3.0, 0.5], Some(Found::NoTime)), [best, late]);
        assert_eq!(
            lines(&[], Some(Found::NoTime)),
            ["m start: left out: no time"]
        );
    }
}
