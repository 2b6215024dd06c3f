//! PyTorch on the same shapes, where this machine has it.

use crate::Check;
use crate::clock::{End, Said};
use crate::outcome::{Facts, Found, Outcome, Stage};
use serde::Deserialize;
use serde_json::json;
use std::process::Command;

/// The interpreter.
pub const PROGRAM: &str = "python3";

/// Seconds that a way may take.
const LIMIT: u64 = 300;
/// Seconds for which there must be time: importing takes most of them.
const LEAST: u64 = 15;

/// Shapes, all in bf16.
const SHAPES: [&str; 3] = ["qwen3-0.6b", "llama-3.2-1b", "llama-3-8b"];
/// Tests of each, as Rusty's are called.
const TESTS: [&str; 4] = ["tg128", "pp512", "pp2048", "pp4096"];
/// Rows and columns of square products.
const SQUARES: [u32; 3] = [4096, 6144, 8192];

const SCRIPT: &str = include_str!("pytorch.py");

/// What the script calls a GPU.
pub const GPU: &str = "cuda";

/// A line of the script.
#[derive(Deserialize)]
struct Line {
    /// Where PyTorch ran: on the CPU where it has no GPU.
    device: String,
    /// None for products of no model.
    shape: Option<String>,
    test: String,
    /// Tokens per second.
    rate: Option<f64>,
    /// Operations per second.
    operations: Option<f64>,
    error: Option<String>,
}

impl Line {
    fn name(&self) -> String {
        match &self.shape {
            Some(shape) => name(shape, &self.test),
            None => self.test.clone(),
        }
    }

    /// What it tells; of another device than a GPU only in words, so that nothing is held against it.
    fn found(self) -> Found {
        let found = match (self.error, self.operations, self.rate) {
            (Some(reason), ..) => Found::Error(reason),
            (_, Some(operations), rate) => Found::Products { operations, rate },
            (_, _, Some(rate)) => Found::Speed {
                rate,
                facts: Facts::default(),
            },
            _ => Found::Error("neither a rate nor a reason".into()),
        };
        if self.device == GPU || matches!(found, Found::Error(_)) {
            return found;
        }
        Found::Figures(format!("{found} on {}, not on a GPU", self.device))
    }
}

/// What an outcome of a shape's test is called.
fn name(shape: &str, test: &str) -> String {
    format!("{shape} bf16 {test}")
}

/// Shapes and tests of a way, most telling first.
fn tests(stage: Stage, small: bool) -> Vec<(&'static str, &'static str)> {
    match (small, stage) {
        (true, Stage::Matmul) => vec![("qwen3-tiny", "pp8")],
        (true, _) => vec![("qwen3-tiny", "tg4"), ("qwen3-tiny", "pp8")],
        (false, Stage::Matmul) => of_all_shapes(&TESTS[1..]),
        // To compile a model for another length takes as long as all else of it.
        (false, Stage::Compiled) => of_all_shapes(&TESTS[..2]),
        (false, _) => of_all_shapes(&TESTS),
    }
}

fn of_all_shapes(tests: &[&'static str]) -> Vec<(&'static str, &'static str)> {
    let each = tests.iter();
    each.flat_map(|test| SHAPES.map(|shape| (shape, *test)))
        .collect()
}

/// Runs all shapes operation by operation or compiled, or their products alone.
pub fn run(check: &Check, stage: Stage) -> Vec<Outcome> {
    let way = way(stage);
    let outcome = |what: String, found| Outcome::new(stage, way, what, found);
    let tests = tests(stage, check.small);
    let names = tests.iter().map(|(shape, test)| name(shape, test));
    let names: Vec<String> = names.collect();
    if check.clock.left().as_secs() < LEAST {
        return vec![outcome(names.join(", "), Found::NoTime)];
    }
    let squares: &[u32] = match (check.small, stage) {
        (false, Stage::Matmul) => &SQUARES,
        (true, Stage::Matmul) => &[64],
        _ => &[],
    };
    let job = json!({ "way": way, "tests": tests, "squares": squares }).to_string();
    let mut command = Command::new(PROGRAM);
    command.args(["-c", SCRIPT, &job]);
    // Nothing is fetched.
    command.env("HF_HUB_OFFLINE", "1");
    let title = format!("torch {way}");
    let said = match check.clock.run(&title, &mut command, LIMIT) {
        Ok(said) => said,
        Err(error) => return vec![outcome(way.into(), Found::Absent(format!("{error:#}")))],
    };
    let lines = said.out.lines();
    let lines: Vec<Line> = lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let told: Vec<String> = lines.iter().map(Line::name).collect();
    let lacking: Vec<String> = names.into_iter().filter(|n| !told.contains(n)).collect();
    let each = told.into_iter().zip(lines);
    let each = each.map(|(name, line)| outcome(name, line.found()));
    let reason = shortfall(&said).filter(|_| !lacking.is_empty());
    let rest = reason.map(|reason| outcome(lacking.join(", "), reason));
    each.chain(rest).collect()
}

/// Why there is not more; that this machine lacks PyTorch is no fault.
fn shortfall(said: &Said) -> Option<Found> {
    match said.end {
        End::Badly if said.err.contains("ModuleNotFoundError") => {
            Some(Found::Absent(said.reason()))
        }
        _ => said.shortfall(),
    }
}

/// Whether there is a PyTorch, as far as can be told without importing it.
pub fn is_there(check: &Check) -> bool {
    const LOOK: &str =
        "import importlib.util as i; exit(not (i.find_spec('torch') and i.find_spec('numpy')))";
    let mut command = Command::new(PROGRAM);
    command.args(["-c", LOOK]);
    let said = check.clock.run("is PyTorch there", &mut command, 20);
    said.is_ok_and(|said| said.end == End::Well)
}

/// The word for a way of running.
fn way(stage: Stage) -> &'static str {
    match stage {
        Stage::Compiled => "compiled",
        Stage::Matmul => "matmul",
        _ => "eager",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_of_another_device_than_a_gpu_are_words() {
        let found = |line: &str| {
            let line: Line = serde_json::from_str(line).expect("a line");
            line.found()
        };
        let gpu = found(r#"{"device": "cuda", "shape": "m", "test": "tg128", "rate": 50.0}"#);
        let facts = Facts::default();
        assert_eq!(gpu, Found::Speed { rate: 50.0, facts });
        let cpu = found(r#"{"device": "cpu", "shape": "m", "test": "tg128", "rate": 50.0}"#);
        let words = "50.0 tok/s on cpu, not on a GPU";
        assert_eq!(cpu, Found::Figures(words.into()));
        let failed = found(r#"{"device": "cpu", "test": "tg128", "error": "no room"}"#);
        assert_eq!(failed, Found::Error("no room".into()));
    }
}
