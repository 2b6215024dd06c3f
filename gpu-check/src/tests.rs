//! The test programs, on a device.

use crate::Check;
use crate::clock::{End, Said};
use crate::devices::Present;
use crate::outcome::{Found, Outcome, Stage};

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

/// A few that take seconds: models and answers as other implementations have them, kernels of matrix units and of split
/// keys, many adapters at once.
const QUICK: [&str; 6] = [
    "greedy_tokens_match_the_reference",
    "quantized_gguf_on_a_gpu",
    "matrix_units::",
    "split_keys",
    "demo::",
    "sixteen_adapters",
];

/// Runs all of them, or the quick ones.
pub fn run(check: &Check, stage: Stage, device: &Present) -> Vec<Outcome> {
    let wanted: &[&str] = match (check.small, stage) {
        (true, _) => &["of_many_rows"],
        (false, Stage::Quick) => &QUICK,
        (false, _) => &[],
    };
    PROGRAMS
        .iter()
        .map(|(program, skipped)| {
            let found = one(check, device, program, wanted, skipped)
                .unwrap_or_else(|error| Found::Error(format!("{error:#}")));
            let what = match stage {
                Stage::Quick => format!("{program}, a few"),
                _ => (*program).to_string(),
            };
            Outcome::new(stage, &device.choice, what, found)
        })
        .collect()
}

fn one(
    check: &Check,
    device: &Present,
    program: &str,
    wanted: &[&str],
    skipped: &[&str],
) -> anyhow::Result<Found> {
    if check.clock.left().as_secs() < 5 {
        return Ok(Found::NoTime);
    }
    let start = |more: &[&str]| {
        let mut command = check.command(&check.bundle.join("tests").join(program));
        command
            .env("RUSTY_ROOT", check.bundle.join("data"))
            .env("RUSTY_TEST_GPU", &device.choice)
            .args(wanted)
            .args(more);
        for name in skipped {
            command.args(["--skip", name]);
        }
        command
    };
    let name = format!("{program} on {}", device.choice);
    let listed = check.clock.run(&name, &mut start(&["--list"]), 20)?;
    if listed.end == End::Late {
        return Ok(Found::NoTime);
    }
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
    Ok(counted(&names, &said))
}

/// How the tests of these names ended by what their program said.
fn counted(names: &[&str], said: &Said) -> Found {
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
    if matches!(said.end, End::Badly | End::Stopped) && failed.is_empty() && unfinished.is_empty() {
        return Found::Error(said.reason());
    }
    let left_out = match said.end {
        End::Late => std::mem::take(&mut unfinished).len(),
        _ => 0,
    };
    Found::Tests {
        passed,
        failed,
        unfinished,
        left_out,
    }
}

#[cfg(test)]
mod counting {
    use super::*;

    #[test]
    fn what_no_time_was_left_for_is_no_failure() {
        let said = |end| Said {
            end,
            out: "test a ... ok\ntest b ... FAILED\n".into(),
            err: String::new(),
        };
        let found = |end| match counted(&["a", "b", "c"], &said(end)) {
            Found::Tests {
                passed,
                failed,
                unfinished,
                left_out,
            } => (passed, failed.len(), unfinished.len(), left_out),
            other => panic!("{other:?}"),
        };
        assert_eq!(found(End::Late), (1, 1, 0, 1));
        assert_eq!(found(End::Stopped), (1, 1, 1, 0));
    }
}
