//! Models of real shapes with random weights on a device: which, at what.

use crate::Check;
use crate::job::{self, Job};
use crate::model::{Model, Row, Work};
use crate::outcome::{Found, Outcome, Stage};
use crate::parts::Part;
use std::collections::BTreeSet;

/// Seconds that a model may take.
const LIMIT: u64 = 90;
/// Sequences of a step, from products with vectors to those with matrices.
const BATCHES: [usize; 7] = [2, 4, 8, 16, 24, 32, 64];
/// Repetitions of decoding, which is many steps that are alike.
const STEADY: usize = 2;
/// Bytes of memory that are too few for Llama-3.2-1B's 2.5 GB.
const TIGHT: u64 = 1_500_000_000;

/// A model that prefills and decodes.
fn both(device: &str, shape: &str, format: &str) -> Model {
    let prompt = |prompt| Work {
        prompt,
        batch: 1,
        ..Work::default()
    };
    Model {
        shape: shape.into(),
        format: format.into(),
        device: device.into(),
        kv: "f16".into(),
        memory: None,
        adapters: 0,
        bytes: false,
        guesses: false,
        repetitions: 3,
        works: vec![
            Work {
                generate: 128,
                ..prompt(512)
            },
            prompt(2048),
            prompt(4096),
        ],
    }
}

/// Decoding of so many sequences that wear so many adapters.
fn decoding(batch: usize, adapters: usize) -> Work {
    Work {
        generate: 64,
        batch,
        adapters,
        ..Work::default()
    }
}

/// The most telling first; on the first device also as guessed where that is most telling, on others only what tells them apart.
fn main_models(device: &str, first: bool) -> Vec<Model> {
    let guessed = |shape: &str, format: &str| Model {
        guesses: first,
        ..both(device, shape, format)
    };
    let mut models = vec![
        guessed("qwen3-0.6b", "q4_0"),
        both(device, "qwen3-0.6b", "bf16"),
        guessed("llama-3-8b", "q4_0"),
    ];
    if first {
        models.extend([
            both(device, "llama-3-8b", "bf16"),
            both(device, "llama-3.2-1b", "bf16"),
        ]);
    }
    models
}

/// The others, on any device as far as time goes.
fn more_models(device: &str) -> Vec<Model> {
    let decode = |shape: &str, format: &str, works: Vec<Work>| Model {
        works,
        repetitions: STEADY,
        ..both(device, shape, format)
    };
    let adapted = |bytes: bool| {
        let works = [(16, 0), (16, 16), (1, 0), (1, 1)];
        let works = works.map(|(batch, adapters)| decoding(batch, adapters));
        Model {
            adapters: 16,
            bytes,
            ..decode("qwen3-0.6b", "q4_0", works.to_vec())
        }
    };
    let deep = |kv: &str| {
        let work = Work {
            depth: 4096,
            ..decoding(1, 0)
        };
        Model {
            kv: kv.into(),
            ..decode("qwen3-0.6b", "q4_0", vec![work])
        }
    };
    let few = Work {
        generate: 8,
        ..decoding(1, 0)
    };
    let batches = BATCHES.map(|batch| decoding(batch, 0)).to_vec();
    vec![
        adapted(false),
        adapted(true),
        deep("f16"),
        deep("q8_0"),
        deep("q4_0"),
        Model {
            memory: Some(TIGHT),
            ..decode("llama-3.2-1b", "bf16", vec![few])
        },
        decode("qwen3-0.6b", "q4_0", batches.clone()),
        decode("qwen3-0.6b", "bf16", batches),
        both(device, "gemma-3-1b", "q4_0"),
        both(device, "llama-3.2-1b", "q4_0"),
        both(device, "qwen3-0.6b", "q4_k_m"),
        both(device, "qwen3-0.6b", "q8_0"),
    ]
}

/// What tries the check itself.
fn small_models(device: &str, stage: Stage) -> Vec<Model> {
    let tiny = |works: &[Work]| Model {
        works: works.to_vec(),
        ..both(device, "qwen3-tiny", "q4_0")
    };
    let few = |batch, adapters| Work {
        generate: 4,
        ..decoding(batch, adapters)
    };
    match stage {
        Stage::More => vec![
            Model {
                adapters: 2,
                ..tiny(&[few(2, 0), few(2, 2)])
            },
            Model {
                kv: "q8_0".into(),
                ..tiny(&[few(1, 0)])
            },
        ],
        _ => vec![Model {
            guesses: true,
            ..tiny(&[Work {
                prompt: 8,
                ..few(1, 0)
            }])
        }],
    }
}

/// Runs the main models, or the others.
pub fn run(check: &Check, part: &Part<'_>) -> Vec<Outcome> {
    let Part { stage, device, .. } = *part;
    let models = match (check.small, stage) {
        (true, _) => small_models(&device.choice, stage),
        (false, Stage::More) => more_models(&device.choice),
        (false, _) => main_models(&device.choice, part.first),
    };
    let mut outcomes = vec![];
    for model in models {
        let outcome = |what, found| Outcome::new(stage, &device.choice, what, found);
        let name = format!("{model:?}");
        let job = Job::Model(model.clone());
        let (rows, lacking) = job::findings::<Row>(check, &name, &job, LIMIT);
        let without = rows.iter().flat_map(|row| row.without.iter().cloned());
        let without: BTreeSet<String> = without.collect();
        outcomes.extend(rows.into_iter().map(|row| {
            let what = format!("{} {} {}", model.shape, model.format, row.test);
            let (rate, facts) = (row.rate, row.facts);
            outcome(what, Found::Speed { rate, facts })
        }));
        if !without.is_empty() {
            let without = Found::Without(without.into_iter().collect());
            outcomes.push(outcome(model.name(), without));
        }
        outcomes.extend(lacking.map(|reason| outcome(model.name(), reason)));
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guessed kernels run before adapters are attached.
    #[test]
    fn no_model_wears_adapters_as_guessed() {
        let small = [Stage::Speeds, Stage::More].map(|stage| small_models("cuda", stage));
        let all = small.into_iter().flatten();
        let main = [true, false].map(|first| main_models("cuda", first));
        let all = all.chain(main.into_iter().flatten());
        let all = all.chain(more_models("cuda"));
        let adapted: Vec<Model> = all.filter(|model| model.adapters > 0).collect();
        assert!(adapted.len() >= 3);
        for model in adapted {
            assert!(!model.guesses, "{}", model.name());
        }
    }
}
