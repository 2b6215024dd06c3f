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
pub fn run(check: &Check, compiled: bool) -> Vec<Outcome> {
    let stage = if compiled {
        Stage::Compiled
    } else {
        Stage::Eager
    };
    let shapes: &[_] = if check.small {
        &["qwen3-tiny"]
    } else {
        &SHAPES
    };
    let mut outcomes = vec![];
    for shape in shapes {
        let outcome = |what: String, found| Outcome::new(stage, "torch", what, found);
        match one(check, shape, compiled) {
            Ok(rows) => outcomes.extend(rows.into_iter().map(|(test, rate)| {
                let speed = Found::Speed {
                    rate,
                    bytes: 0,
                    dispatches: 0,
                    load_s: 0.0,
                };
                outcome(format!("{shape} bf16 {test}"), speed)
            })),
            Err(reason) => outcomes.push(outcome(
                format!("{shape} bf16"),
                Found::Nothing(format!("{reason:#}")),
            )),
        }
    }
    outcomes
}

fn one(check: &Check, shape: &str, compiled: bool) -> anyhow::Result<Vec<(String, f64)>> {
    anyhow::ensure!(check.clock.left().as_secs() > 15, "no time was left");
    let way = if compiled { "compiled" } else { "eager" };
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT, shape, way]);
    let log = check
        .out
        .join(format!("torch-{}-{way}", shape.replace('.', "_")));
    let end = check.clock.run(&mut command, &log, LIMIT)?;
    let said = std::fs::read_to_string(log.with_extension("err"))?;
    match end {
        End::Well => {}
        End::Stopped => anyhow::bail!("took too long"),
        End::Badly => anyhow::bail!("{}", said.lines().last().unwrap_or("failed")),
    }
    let rates = std::fs::read_to_string(log.with_extension("out"))?;
    let rates: Value = serde_json::from_str(rates.lines().last().unwrap_or_default())?;
    let rates = rates.as_object().cloned().unwrap_or_default();
    let rate = |(test, rate): (String, Value)| Some((test, rate.as_f64()?));
    Ok(rates.into_iter().filter_map(rate).collect())
}
