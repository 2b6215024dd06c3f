//! The test programs, on a device.

use crate::Check;
use crate::clock::End;
use crate::devices::Present;
use crate::outcome::{Found, Outcome, Stage};
use std::process::Command;

/// Seconds that a program may take.
const LIMIT: u64 = 150;

/// Test programs by crate, with what they skip: tests that run on no GPU, or that compare with files of the sources.
const PROGRAMS: [(&str, &[&str]); 2] = [
    (
        "rusty-compiler",
        &[
            "plans::",
            "gpu_text::",
            "long_context::",
            "shape_only::",
            "memory_is_stated",
        ],
    ),
    (
        "rusty-engine",
        &[
            "adapter_files::",
            "adapter_oddities::",
            "adapter_tools::",
            "experts::",
            "manifests::",
            "residency::",
            "samplers::",
            "warnings::",
        ],
    ),
];

/// Runs all of them.
pub fn run(check: &Check, device: &Present) -> Vec<Outcome> {
    PROGRAMS
        .iter()
        .map(|(program, skipped)| {
            let found = one(check, device, program, skipped)
                .unwrap_or_else(|error| Found::Error(format!("{error:#}")));
            Outcome::new(Stage::Conformance, &device.choice, *program, found)
        })
        .collect()
}

fn one(check: &Check, device: &Present, program: &str, skipped: &[&str]) -> anyhow::Result<Found> {
    if check.clock.left().as_secs() < 5 {
        return Ok(Found::NoTime);
    }
    let start = |more: &[&str]| {
        let mut command = Command::new(check.bundle.join("tests").join(program));
        command
            .env("RUSTY_ROOT", check.bundle.join("data"))
            .env("RUSTY_TEST_GPU", &device.choice);
        for name in skipped {
            command.args(["--skip", name]);
        }
        if check.small {
            command.arg("of_many_rows");
        }
        command.args(more);
        command
    };
    let name = format!("{program} on {}", device.choice);
    let listed = check.clock.run(&name, &mut start(&["--list"]), 20)?;
    let names: Vec<&str> = listed
        .out
        .lines()
        .filter_map(|l| l.strip_suffix(": test"))
        .collect();
    // A small check runs tests of some programs only.
    if listed.end != End::Well || (names.is_empty() && !check.small) {
        let reason = listed.reason();
        return Ok(Found::Error(format!(
            "its tests cannot be listed: {reason}"
        )));
    }
    let said = check.clock.run(&name, &mut start(&[]), LIMIT)?;
    let lines: Vec<&str> = said.out.lines().collect();
    let ended = |name: &str, how: &str| lines.contains(&format!("test {name} ... {how}").as_str());
    let mut passed = 0;
    let (mut failed, mut unfinished) = (vec![], vec![]);
    for name in names {
        match (ended(name, "ok"), ended(name, "FAILED")) {
            (true, _) => passed += 1,
            (_, true) => failed.push(name.to_string()),
            _ => unfinished.push(name.to_string()),
        }
    }
    if said.end != End::Well && failed.is_empty() && unfinished.is_empty() {
        return Ok(Found::Error(said.reason()));
    }
    Ok(Found::Tests {
        passed,
        failed,
        unfinished,
    })
}
