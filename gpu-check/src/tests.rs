//! The test programs, on a device.

use crate::Check;
use crate::clock::End;
use crate::devices::Present;
use crate::outcome::{Found, Outcome, Stage};
use std::process::Command;

/// Seconds that a program may take.
const LIMIT: u64 = 100;

/// Test programs by crate, with what they skip: tests that run on no GPU, or that compare with files of the sources.
const PROGRAMS: [(&str, &[&str]); 2] = [
    (
        "rusty-compiler",
        &["plans::", "gpu_text::", "long_context::", "shape_only::"],
    ),
    (
        "rusty-engine",
        &[
            "adapter_files::",
            "adapter_oddities::",
            "adapter_tools::",
            "experts::",
            "samplers::",
        ],
    ),
];

/// Runs all of them.
pub fn run(check: &Check, device: &Present) -> Vec<Outcome> {
    PROGRAMS
        .iter()
        .map(|(program, skipped)| {
            let found = one(check, device, program, skipped)
                .unwrap_or_else(|error| Found::Nothing(format!("{error:#}")));
            Outcome::new(Stage::Conformance, &device.choice, *program, found)
        })
        .collect()
}

fn one(check: &Check, device: &Present, program: &str, skipped: &[&str]) -> anyhow::Result<Found> {
    if check.clock.left().as_secs() < 5 {
        return Ok(Found::Nothing("no time was left".into()));
    }
    let mut command = Command::new(check.bundle.join("tests").join(program));
    command
        .env("RUSTY_ROOT", check.bundle.join("data"))
        .env("RUSTY_TEST_GPU", &device.choice)
        .env("RUST_BACKTRACE", "0");
    for name in skipped {
        command.args(["--skip", name]);
    }
    if check.small {
        command.arg("experts_do_not_depend");
    }
    let log = check
        .out
        .join(format!("tests-{}-{program}", word(&device.choice)));
    let end = check.clock.run(&mut command, &log, LIMIT)?;
    let said = std::fs::read_to_string(log.with_extension("out"))?;
    Ok(Found::Tests {
        passed: said.matches("... ok\n").count(),
        failed: failures(&said),
        whole: end != End::Stopped,
    })
}

/// Names of tests that failed.
fn failures(said: &str) -> Vec<String> {
    let failed = said.lines().filter_map(|l| l.strip_suffix(" ... FAILED"));
    failed
        .map(|l| l.trim_start_matches("test ").to_string())
        .collect()
}

/// A choice of device as part of a file's name.
pub fn word(choice: &str) -> String {
    choice.replace(':', "-")
}
