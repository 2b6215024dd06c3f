//! Models of real shapes with random weights on a device.

use crate::Check;
use crate::clock::End;
use crate::devices::Present;
use crate::job::{self, Job, Model, Row};
use crate::outcome::{Found, Outcome, Stage};

/// Seconds that a model may take.
const LIMIT: u64 = 90;

/// What is measured, most telling first.
fn models(device: &str, small: bool) -> Vec<Model> {
    let both = |shape: &str, format: &str| Model {
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
        tuned: true,
    };
    if small {
        let tiny = both("qwen3-tiny", "q4_0");
        return vec![Model {
            prompt: 8,
            generate: 4,
            ..tiny
        }];
    }
    let decode = |format: &str, batch: usize, adapters: usize, bytes: bool| Model {
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
        Model {
            depth: 4096,
            ..decode("q4_0", 1, 0, false)
        },
        Model {
            tuned: false,
            ..both("qwen3-0.6b", "q4_0")
        },
        Model {
            tuned: false,
            ..both("llama-3-8b", "bf16")
        },
        decode("bf16", 4, 0, false),
        decode("bf16", 64, 0, false),
        Model {
            prompt: 4096,
            generate: 0,
            ..both("qwen3-0.6b", "bf16")
        },
    ]
}

/// How many of them are the most telling.
const FIRST: usize = 5;

/// Runs the first models, or the others.
pub fn run(check: &Check, stage: Stage, device: &Present) -> Vec<Outcome> {
    let mut models = models(&device.choice, check.small);
    let others = models.split_off(models.len().min(FIRST));
    if stage == Stage::More {
        models = others;
    }
    let mut outcomes = vec![];
    for model in models {
        let name = format!("{} {}", model.shape, model.format);
        let adapters = match (model.adapters, model.bytes) {
            (0, _) => String::new(),
            (n, false) => format!(" {n} adapters"),
            (n, true) => format!(" {n} int8 adapters"),
        };
        let guessed = if model.tuned { "" } else { " as guessed" };
        let outcome = |what, found| Outcome::new(stage, &device.choice, what, found);
        match one(check, &model) {
            Ok(rows) => outcomes.extend(rows.into_iter().map(|row| {
                let found = Found::Speed {
                    rate: row.rate,
                    per_token: row.per_token,
                };
                outcome(format!("{name} {}{adapters}{guessed}", row.test), found)
            })),
            Err(reason) => outcomes.push(outcome(format!("{name}{adapters}{guessed}"), reason)),
        }
    }
    outcomes
}

/// Rows of a model, or why there are none.
fn one(check: &Check, model: &Model) -> Result<Vec<Row>, Found> {
    if check.clock.left().as_secs() < 5 {
        return Err(Found::NoTime);
    }
    let error = |e: String| Found::Error(e);
    let name = format!("{model:?}");
    let said = job::start(check, &name, &Job::Model(model.clone()), LIMIT);
    let said = said.map_err(|e| error(format!("{e:#}")))?;
    match said.end {
        End::Well => serde_json::from_str(&said.out).map_err(|e| error(e.to_string())),
        _ => Err(error(said.reason())),
    }
}
