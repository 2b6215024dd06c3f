//! The report: report.json for programs, a table for people.

use crate::devices::All;
use crate::outcome::{Found, Outcome, Stage};
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

/// Devices and findings; of speeds also the share of the device's bandwidth, the time per launch and how many times
/// PyTorch's speed they are.
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
    let Found::Speed { rate, per_token } = outcome.found else {
        return String::new();
    };
    let mut text = String::new();
    let copies = all.iter().find_map(|o| match o.found {
        Found::Bandwidth(rate) if o.device == outcome.device && o.what == "copies" => Some(rate),
        _ => None,
    });
    if let (Some((bytes, dispatches)), Some(copies)) = (per_token, copies) {
        let share = 100.0 * rate * bytes as f64 / copies;
        let launch = 1e6 / rate / f64::from(dispatches);
        let _ = write!(text, ", {share:.0}% of copies, {launch:.2} us per launch");
    }
    for (stage, name) in [(Stage::Eager, "eager"), (Stage::Compiled, "compiled")] {
        if let Some(peer) = peer(outcome, stage, all) {
            let _ = write!(text, ", {:.1} x PyTorch bf16 {name}", rate / peer);
        }
    }
    text
}

/// PyTorch's speed on the same shape and test.
fn peer(outcome: &Outcome, stage: Stage, all: &[Outcome]) -> Option<f64> {
    let words = |o: &Outcome| {
        let words: Vec<String> = o.what.split(' ').map(String::from).collect();
        Some((words.first()?.clone(), words.get(2)?.clone(), words.len()))
    };
    all.iter()
        .filter(|o| o.stage == stage && words(o) == words(outcome))
        .find_map(|o| match o.found {
            Found::Speed { rate, .. } => Some(rate),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Present;

    fn speed(stage: Stage, device: &str, what: &str, rate: f64) -> Outcome {
        let found = Found::Speed {
            rate,
            per_token: (!what.contains('x')).then_some((1_000_000, 100)),
        };
        Outcome::new(stage, device, what, found)
    }

    #[test]
    fn speeds_are_held_against_bandwidth_and_peers() {
        let devices = All {
            present: vec![Present {
                choice: "cuda".into(),
                name: "a GPU".into(),
                memory_bytes: 1,
                hardware: true,
            }],
            lines: vec![],
        };
        let outcomes = [
            Outcome::new(Stage::Bandwidth, "cuda", "copies", Found::Bandwidth(1e9)),
            speed(Stage::Speeds, "cuda", "m q4_0 tg128", 500.0),
            speed(Stage::Speeds, "cuda", "m q4_0 tg64x16", 900.0),
            speed(Stage::Eager, "torch", "m bf16 tg128", 50.0),
        ];
        let text = table(&devices, &outcomes);
        let line = |word: &str| {
            text.lines()
                .find(|l| l.contains(word))
                .expect("a line")
                .to_string()
        };
        let alone = line("m q4_0 tg128");
        assert!(
            alone.ends_with(
                "500.0 tok/s, 50% of copies, 20.00 us per launch, 10.0 x PyTorch bf16 eager"
            ),
            "{alone}"
        );
        assert!(line("x16").ends_with("900.0 tok/s"));
    }
}
