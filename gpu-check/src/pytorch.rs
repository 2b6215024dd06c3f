//! PyTorch on the same shapes, where this machine has it.

use crate::Check;
use crate::clock::End;
use crate::outcome::{Found, Outcome, Stage};
use serde_json::Value;
use std::process::Command;

/// Seconds that a model may take.
const LIMIT: u64 = 100;

/// Shapes, all in bf16.
const SHAPES: [&str; 3] = ["qwen3-0.6b", "llama-3.2-1b", "llama-3-8b"];

const SCRIPT: &str = include_str!("pytorch.py");

/// Runs all shapes, operation by operation or compiled.
pub fn run(check: &Check, stage: Stage) -> Vec<Outcome> {
    let shapes: &[_] = if check.small {
        &["qwen3-tiny"]
    } else {
        &SHAPES
    };
    let mut outcomes = vec![];
    for shape in shapes {
        let outcome = |what: String, found| Outcome::new(stage, way(stage), what, found);
        let (rates, reason) = one(check, shape, stage);
        outcomes.extend(rates.into_iter().map(|(test, rate)| {
            let per_token = None;
            outcome(
                format!("{shape} bf16 {test}"),
                Found::Speed { rate, per_token },
            )
        }));
        outcomes.extend(reason.map(|reason| outcome(format!("{shape} bf16"), reason)));
    }
    outcomes
}

/// Tests with their tokens per second, and why there are no more.
fn one(check: &Check, shape: &str, stage: Stage) -> (Vec<(String, f64)>, Option<Found>) {
    if check.clock.left().as_secs() < 15 {
        return (vec![], Some(Found::NoTime));
    }
    let way = way(stage);
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT, shape, way]);
    // Nothing is fetched.
    command.env("HF_HUB_OFFLINE", "1");
    let said = match check
        .clock
        .run(&format!("torch {shape} {way}"), &mut command, LIMIT)
    {
        Ok(said) => said,
        Err(error) => return (vec![], Some(Found::Absent(format!("{error:#}")))),
    };
    let rate = |line: &str| {
        let row: Value = serde_json::from_str(line).ok()?;
        Some((row["test"].as_str()?.to_string(), row["rate"].as_f64()?))
    };
    let rates = said.out.lines().filter_map(rate).collect();
    let reason = match said.end {
        End::Well => None,
        _ if said.err.contains("ModuleNotFoundError") => Some(Found::Absent(said.reason())),
        _ => Some(Found::Error(said.reason())),
    };
    (rates, reason)
}

/// The word for a way of running.
fn way(stage: Stage) -> &'static str {
    match stage {
        Stage::Compiled => "compiled",
        _ => "eager",
    }
}
