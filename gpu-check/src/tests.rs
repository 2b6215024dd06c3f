//! The test programs, on a device: all at once, each in several processes that share its tests. Most of the time goes to kernels'
//! compilers, which may have locks of their own in a process; so all cores have work, and a fault ends no more than a share.

use crate::Check;
use crate::clock::{End, Said};
use crate::devices::Present;
use crate::outcome::{Found, Outcome, Stage};
use anyhow::Result;
use std::process::Command;
use std::thread;

/// Seconds that a program may take.
const LIMIT: u64 = 150;
/// Seconds for which there must be time, or nothing is started.
const LEAST: u64 = 5;
/// Most processes of a program.
const SHARES: usize = 4;
/// Tests that a process runs at once: while one waits for the device another compiles.
const AT_ONCE: &str = "2";

/// Test programs by crate, with what they skip: tests that run on no GPU, or that compare with files of the sources.
const PROGRAMS: [(&str, &[&str]); 3] = [
    ("rusty-backend", &["facts::", "nvrtc_cache::"]),
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

/// A few that take seconds: what a device is made of, models and answers as other implementations have them, kernels of matrix units
/// and of split keys, many adapters at once, and the random weights that models are measured with.
const QUICK: [&str; 8] = [
    "a_recording_replays",
    "a_device_makes_the_bytes",
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
    let found = thread::scope(|scope| {
        let running = PROGRAMS.map(|(name, skipped)| {
            let program = Program {
                check,
                device,
                name,
            };
            scope.spawn(move || program.run(wanted, skipped))
        });
        running.map(|program| program.join())
    });
    let programs = PROGRAMS.into_iter().zip(found);
    let outcomes = programs.flat_map(|((program, _), found)| {
        let what = match stage {
            Stage::Quick => format!("{program}, a few"),
            _ => program.to_string(),
        };
        let found = found.unwrap_or_else(|_| vec![Found::Error("its tests were not run".into())]);
        let outcome = |found| Outcome::new(stage, &device.choice, what.clone(), found);
        found.into_iter().map(outcome).collect::<Vec<_>>()
    });
    outcomes.collect()
}

/// A test program on a device.
struct Program<'a> {
    check: &'a Check,
    device: &'a Present,
    name: &'a str,
}

impl Program<'_> {
    /// Runs its tests whose names hold one of the words, or all; how they ended, and what else went wrong.
    fn run(&self, wanted: &[&str], skipped: &[&str]) -> Vec<Found> {
        if self.check.clock.left().as_secs() < LEAST {
            return vec![Found::NoTime];
        }
        let said = match self.start(self.listing(wanted, skipped), 20) {
            Ok(said) => said,
            Err(error) => return vec![Found::Error(format!("{error:#}"))],
        };
        let names: Vec<&str> = said
            .out
            .lines()
            .filter_map(|l| l.strip_suffix(": test"))
            .collect();
        // A small check runs tests of some programs only.
        let listed = said.end == End::Well && (!names.is_empty() || self.check.small);
        match (said.end, listed) {
            (End::Late, _) => vec![Found::NoTime],
            (_, true) => self.shared(&names),
            (_, false) => {
                let reason = said.reason();
                vec![Found::Error(format!(
                    "its tests cannot be listed: {reason}"
                ))]
            }
        }
    }

    /// Runs the tests of these names in processes, each of which has every so many'th: neighbours, which often take as long as each
    /// other, are in different ones.
    fn shared(&self, names: &[&str]) -> Vec<Found> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let shares = (cores / PROGRAMS.len()).clamp(1, SHARES).min(names.len());
        let share = |i: usize| names.iter().copied().skip(i).step_by(shares);
        let found = thread::scope(|scope| {
            let running: Vec<_> = (0..shares)
                .map(|i| scope.spawn(move || self.share(&share(i).collect::<Vec<_>>())))
                .collect();
            let ended = running.into_iter().map(|share| {
                let lost = |_| Found::Error("some of its tests were not run".into());
                share.join().unwrap_or_else(lost)
            });
            ended.collect()
        });
        merged(found)
    }

    fn share(&self, names: &[&str]) -> Found {
        let mut command = self.command();
        command.args(["--exact", "--test-threads", AT_ONCE]);
        command.args(names);
        match self.start(command, LIMIT) {
            Ok(said) => counted(names, &said),
            Err(error) => Found::Error(format!("{error:#}")),
        }
    }

    fn listing(&self, wanted: &[&str], skipped: &[&str]) -> Command {
        let mut command = self.command();
        command.args(wanted).arg("--list");
        for name in skipped {
            command.args(["--skip", name]);
        }
        command
    }

    fn command(&self) -> Command {
        let check = self.check;
        let mut command = check.command(&check.bundle.join("tests").join(self.name));
        command
            .env("RUSTY_ROOT", check.bundle.join("data"))
            .env("RUSTY_TEST_GPU", &self.device.choice);
        command
    }

    fn start(&self, mut command: Command, limit: u64) -> Result<Said> {
        let title = format!("{} on {}", self.name, self.device.choice);
        self.check.clock.run(&title, &mut command, limit)
    }
}

/// What shares found as one finding, and what is none of tests.
fn merged(shares: Vec<Found>) -> Vec<Found> {
    let (mut all, mut others) = ((0, vec![], vec![], 0), vec![]);
    for share in shares {
        match share {
            Found::Tests {
                passed,
                failed,
                unfinished,
                left_out,
            } => {
                all.0 += passed;
                all.1.extend(failed);
                all.2.extend(unfinished);
                all.3 += left_out;
            }
            other => others.push(other),
        }
    }
    let (passed, failed, unfinished, left_out) = all;
    let tests = Found::Tests {
        passed,
        failed,
        unfinished,
        left_out,
    };
    [tests].into_iter().chain(others).collect()
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

    #[test]
    fn what_a_share_lacks_does_not_hide_what_the_others_found() {
        let tests = |passed, failed: &[&str]| Found::Tests {
            passed,
            failed: failed.iter().map(|name| name.to_string()).collect(),
            unfinished: vec![],
            left_out: 1,
        };
        let crash = Found::Error("a signal".into());
        let all = merged(vec![tests(3, &["a"]), crash.clone(), tests(2, &["b"])]);
        let Found::Tests { left_out, .. } = &all[0] else {
            panic!("{all:?}");
        };
        assert_eq!(*left_out, 2);
        let line = all[0].to_string();
        assert!(line.starts_with("5 passed, 2 failed: a b"), "{line}");
        assert_eq!(all[1..], [crash]);
    }
}
