//! The report: report.json for programs, table.txt for people. What is printed of it is the [summary](crate::summary).

use crate::devices::All;
use crate::outcome::{Adapted, Facts, Found, Outcome, Stage};
use anyhow::{Context, Result};
use serde_json::json;
use std::fmt::Write;
use std::path::Path;

/// Writes report.json and table.txt.
pub fn write(out: &Path, devices: &All, outcomes: &[Outcome]) -> Result<()> {
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "devices": devices,
        "outcomes": outcomes,
    });
    for (name, text) in [
        ("report.json", serde_json::to_string_pretty(&report)?),
        ("table.txt", table(devices, outcomes)),
    ] {
        let path = out.join(name);
        std::fs::write(&path, text)
            .with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}

/// Of the rate of PyTorch's products that prefill is to reach.
pub const PREFILL_AIM: f64 = 0.6;

/// Devices and findings; of speeds also the share of the device's bandwidth, the time per launch, what adapters cost, what
/// streams, and how many times PyTorch's speed they are.
pub fn table(devices: &All, outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for line in &devices.lines {
        let _ = writeln!(text, "{line}");
    }
    for outcome in outcomes {
        let mut line = outcome.line();
        if matches!(outcome.stage, Stage::Speeds | Stage::More) {
            line += &comparison(outcome, outcomes);
        }
        let _ = writeln!(text, "{line}");
    }
    text
}

fn comparison(outcome: &Outcome, all: &[Outcome]) -> String {
    let Found::Speed { rate, facts } = outcome.found else {
        return String::new();
    };
    let mut text = beside_bounds(rate, &facts, copies(&outcome.device, all));
    if let Some(products) = peer(outcome, Stage::Matmul, all) {
        let (share, aim) = (100.0 * rate / products, 100.0 * PREFILL_AIM);
        let _ = write!(text, ", {share:.0}% of PyTorch's products (aim: {aim:.0}%)");
    }
    for (stage, name) in [(Stage::Eager, "eager"), (Stage::Compiled, "compiled")] {
        if let Some(peer) = peer(outcome, stage, all) {
            let _ = write!(text, ", {:.1} x PyTorch bf16 {name}", rate / peer);
        }
    }
    text
}

/// Bytes per second that a device copies.
pub fn copies(device: &str, all: &[Outcome]) -> Option<f64> {
    all.iter().find_map(|o| match o.found {
        Found::Bandwidth(rate) if o.device == device && o.what == "copies" => Some(rate),
        _ => None,
    })
}

/// Of a lone sequence that is decoded at a rate: its bytes per second as a part of those copied, and microseconds per launch.
pub fn per_token(rate: f64, facts: &Facts, copies: Option<f64>) -> Option<(f64, f64)> {
    let ((bytes, dispatches), copies) = facts.per_token.zip(copies)?;
    let launch = 1e6 / rate / f64::from(dispatches);
    Some((rate * bytes as f64 / copies, launch))
}

/// What bytes and launches say of a rate.
pub fn beside_bounds(rate: f64, facts: &Facts, copies: Option<f64>) -> String {
    let mut text = String::new();
    if let Some((share, launch)) = per_token(rate, facts, copies) {
        let share = 100.0 * share;
        let _ = write!(text, ", {share:.0}% of copies, {launch:.2} us per launch");
    }
    if let Some(Adapted { base, bound }) = facts.adapted {
        let part = rate / base;
        let share = 100.0 * part / bound;
        let _ = write!(
            text,
            ", {part:.2} of base, {share:.0}% of the {bound:.2} that bytes allow"
        );
    }
    if let Some(bytes) = facts.streamed {
        let (gb, rate) = (bytes as f64 / 1e9, rate * bytes as f64 / 1e9);
        let _ = write!(text, ", {gb:.2} GB come in each step at {rate:.1} GB/s");
    }
    text
}

/// PyTorch's speed on the same shape and test.
pub fn peer(outcome: &Outcome, stage: Stage, all: &[Outcome]) -> Option<f64> {
    let words = |o: &Outcome| {
        let words: Vec<String> = o.what.split(' ').map(String::from).collect();
        Some((words.first()?.clone(), words.get(2)?.clone(), words.len()))
    };
    all.iter()
        .filter(|o| o.stage == stage && words(o) == words(outcome))
        .find_map(|o| match o.found {
            Found::Speed { rate, .. } => Some(rate),
            Found::Products { rate, .. } => rate,
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Present;

    fn speed(stage: Stage, device: &str, what: &str, rate: f64, facts: Facts) -> Outcome {
        Outcome::new(stage, device, what, Found::Speed { rate, facts })
    }

    #[test]
    fn speeds_are_held_against_bounds_and_peers() {
        let devices = All {
            present: vec![Present {
                choice: "cuda".into(),
                name: "a GPU".into(),
                memory_bytes: 1,
                hardware: true,
            }],
            lines: vec![],
        };
        let none = Facts::default();
        let alone = Facts {
            per_token: Some((1_000_000, 100)),
            ..none
        };
        let adapted = Facts {
            adapted: Some(Adapted {
                base: 1000.0,
                bound: 0.96,
            }),
            ..none
        };
        let streamed = Facts {
            streamed: Some(2_000_000_000),
            ..none
        };
        let products = Found::Products {
            operations: 5e14,
            rate: Some(20_000.0),
        };
        let outcomes = [
            Outcome::new(Stage::Bandwidth, "cuda", "copies", Found::Bandwidth(1e9)),
            speed(Stage::Speeds, "cuda", "m q4_0 tg128", 500.0, alone),
            speed(Stage::Speeds, "cuda", "m q4_0 pp512", 10_000.0, none),
            speed(Stage::More, "cuda", "m q4_0 tg64x16", 900.0, none),
            speed(
                Stage::More,
                "cuda",
                "m q4_0 tg64 16 adapters",
                864.0,
                adapted,
            ),
            speed(Stage::More, "cuda", "m q4_0 tg8 in 1.5 GB", 4.0, streamed),
            Outcome::new(Stage::Matmul, "matmul", "m bf16 pp512", products),
            speed(Stage::Eager, "eager", "m bf16 tg128", 50.0, none),
        ];
        let text = table(&devices, &outcomes);
        let ends = |word: &str, end: &str| {
            let line = text.lines().find(|l| l.contains(word)).expect("a line");
            assert!(line.ends_with(end), "{line}");
        };
        ends(
            "m q4_0 tg128",
            "500.0 tok/s, 50% of copies, 20.00 us per launch, 10.0 x PyTorch bf16 eager",
        );
        ends(
            "m q4_0 pp512",
            "10000.0 tok/s, 50% of PyTorch's products (aim: 60%)",
        );
        ends("x16", "900.0 tok/s");
        ends(
            "16 adapters",
            "864.0 tok/s, 0.86 of base, 90% of the 0.96 that bytes allow",
        );
        ends(
            "in 1.5 GB",
            "4.0 tok/s, 2.00 GB come in each step at 8.0 GB/s",
        );
        ends("m bf16 pp512", "500 TFLOP/s, 20000 tok/s");
    }
}
