//! Models of real shapes with random weights on a device.

use crate::Check;
use crate::clock::End;
use crate::devices::Present;
use crate::model::{JOB, Job, Row};
use crate::outcome::{Found, Outcome, Stage};
use crate::tests::word;
use std::process::Command;

/// Seconds that a model may take.
const LIMIT: u64 = 90;

/// What is measured, most telling first.
fn jobs(device: &str, small: bool) -> Vec<Job> {
    let both = |shape: &str, format: &str| Job {
        shape: shape.into(),
        format: format.into(),
        device: device.into(),
        prompt: 512,
        generate: 128,
        depth: 0,
        batch: 1,
        adapters: 0,
        bytes: false,
        repetitions: 3,
    };
    if small {
        let tiny = both("qwen3-tiny", "q4_0");
        return vec![Job {
            prompt: 8,
            generate: 4,
            ..tiny
        }];
    }
    let decode = |format: &str, batch: usize, adapters: usize, bytes: bool| Job {
        prompt: 0,
        generate: 64,
        batch,
        adapters,
        bytes,
        ..both("qwen3-0.6b", format)
    };
    vec![
        both("qwen3-0.6b", "q4_0"),
        both("qwen3-0.6b", "bf16"),
        both("llama-3.2-1b", "bf16"),
        both("llama-3-8b", "q4_0"),
        both("llama-3-8b", "bf16"),
        decode("q4_0", 16, 0, false),
        decode("q4_0", 1, 1, false),
        decode("q4_0", 16, 16, false),
        decode("q4_0", 16, 16, true),
        both("llama-3.2-1b", "q4_0"),
        both("qwen3-0.6b", "q4_k_m"),
        both("qwen3-0.6b", "q8_0"),
        Job {
            depth: 4096,
            ..decode("q4_0", 1, 0, false)
        },
        decode("bf16", 4, 0, false),
        decode("bf16", 64, 0, false),
        Job {
            prompt: 4096,
            generate: 0,
            ..both("qwen3-0.6b", "bf16")
        },
    ]
}

/// Runs all of them.
pub fn run(check: &Check, device: &Present) -> Vec<Outcome> {
    let mut outcomes = vec![];
    for (at, job) in jobs(&device.choice, check.small).iter().enumerate() {
        let name = format!("{} {}", job.shape, job.format);
        let adapters = match (job.adapters, job.bytes) {
            (0, _) => String::new(),
            (n, false) => format!(" {n} adapters"),
            (n, true) => format!(" {n} int8 adapters"),
        };
        let outcome = |what, found| Outcome::new(Stage::Speeds, &device.choice, what, found);
        match one(check, at, job) {
            Ok(rows) => outcomes.extend(rows.into_iter().map(|row| {
                let found = Found::Speed {
                    rate: row.rate,
                    bytes: row.bytes_per_token,
                    dispatches: row.dispatches_per_token,
                    load_s: row.load_s,
                };
                outcome(format!("{name} {}{adapters}", row.test), found)
            })),
            Err(reason) => {
                let reason = Found::Nothing(format!("{reason:#}"));
                outcomes.push(outcome(format!("{name}{adapters}"), reason));
            }
        }
    }
    outcomes
}

fn one(check: &Check, at: usize, job: &Job) -> anyhow::Result<Vec<Row>> {
    anyhow::ensure!(check.clock.left().as_secs() > 5, "no time was left");
    let mut command = Command::new(std::env::current_exe()?);
    command.env(JOB, serde_json::to_string(job)?);
    let log = check.out.join(format!("speed-{}-{at}", word(&job.device)));
    match check.clock.run(&mut command, &log, LIMIT)? {
        End::Well => {}
        End::Stopped => anyhow::bail!("took too long"),
        End::Badly => {
            let said = std::fs::read_to_string(log.with_extension("err"))?;
            anyhow::bail!("{}", said.lines().last().unwrap_or("failed"));
        }
    }
    let rows = std::fs::read_to_string(log.with_extension("out"))?;
    Ok(serde_json::from_str(&rows)?)
}
