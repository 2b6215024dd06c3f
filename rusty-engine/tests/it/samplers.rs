//! Sampler chains against transformers' and llama.cpp's probabilities.

use super::golden;
use rusty_engine::sampler::{History, Sampler, Sampling, Stage, softmax};
use safetensors::SafeTensors;
use serde_json::Value;

fn stage(op: &Value) -> Stage {
    let f = |key: &str| op[key].as_f64().expect(key) as f32;
    let n = |key: &str| op[key].as_u64().expect(key) as usize;
    match op["op"].as_str().expect("op") {
        "temperature" => Stage::Temperature(f("temperature")),
        "top_k" => Stage::TopK(n("k")),
        "top_p" => Stage::TopP(f("p")),
        "min_p" => Stage::MinP(f("p")),
        "typical" => Stage::Typical(f("p")),
        "epsilon" => Stage::Epsilon(f("epsilon")),
        "eta" => Stage::Eta(f("epsilon")),
        "top_n_sigma" => Stage::TopNSigma(f("n")),
        "repetition" => Stage::Repetition(f("penalty")),
        "presence_frequency" => Stage::PresenceFrequency {
            presence: f("presence"),
            frequency: f("frequency"),
        },
        "no_repeat_ngram" => Stage::NoRepeatNgram(n("n")),
        "dry" => Stage::Dry {
            multiplier: f("multiplier"),
            base: f("base"),
            allowed_length: n("allowed_length"),
            last_n: n("last_n"),
            breakers: op["breakers"].as_array().map_or(vec![], |ids| {
                ids.iter().map(|i| i.as_u64().expect("id") as u32).collect()
            }),
        },
        other => panic!("no stage {other}"),
    }
}

#[test]
fn chains_give_the_reference_probabilities() {
    let cases = std::fs::read(golden("samplers/cases.json")).expect("cases");
    let cases: Vec<Value> = serde_json::from_slice(&cases).expect("json");
    let bytes = std::fs::read(golden("samplers/cases.safetensors")).expect("tensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let floats = |name: &Value| -> Vec<f32> {
        let view = tensors
            .tensor(name.as_str().expect("name"))
            .expect("tensor");
        let values = view.data().as_chunks::<4>().0;
        values.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    assert!(cases.len() > 60);
    for case in &cases {
        let ids = case["history"].as_array().expect("history");
        let history: Vec<u32> = ids.iter().map(|i| i.as_u64().expect("id") as u32).collect();
        let history = History {
            tokens: &history,
            prompt: 0,
        };
        let mut logits = floats(&case["logits"]);
        for op in case["chain"].as_array().expect("chain") {
            stage(op).apply(&mut logits, history);
        }
        let have = softmax(&logits);
        for (token, (have, want)) in have.iter().zip(floats(&case["probs"])).enumerate() {
            let have = *have as f32;
            let close = (have - want).abs() <= 1e-6 + 1e-4 * want;
            let both_removed = (have == 0.0) == (want == 0.0);
            assert!(
                close && both_removed,
                "case {}: token {token}: {have}, {want}",
                case["id"]
            );
        }
    }
}

#[test]
fn prompts_are_repeated_but_not_present() {
    let history = History {
        tokens: &[0, 0, 1],
        prompt: 2,
    };
    let after = |stage: Stage| {
        let mut logits = [2.0, 2.0, 2.0];
        stage.apply(&mut logits, history);
        logits
    };
    let (presence, frequency) = (0.5, 0.25);
    let stage = Stage::PresenceFrequency {
        presence,
        frequency,
    };
    assert_eq!(after(stage), [2.0, 1.25, 2.0]);
    assert_eq!(after(Stage::Repetition(2.0)), [1.0, 1.0, 2.0]);
}

/// What looks back comes behind the penalties, what removes tokens last; where nothing is drawn only the former counts.
#[test]
fn further_stages_have_their_places() {
    let penalties = Stage::PresenceFrequency {
        presence: 1.0,
        frequency: 0.0,
    };
    let mut sampling = Sampling {
        temperature: 0.5,
        top_k: 3,
        presence_penalty: 1.0,
        further: vec![
            Stage::Typical(0.9),
            Stage::TopNSigma(1.5),
            Stage::NoRepeatNgram(2),
            Stage::Epsilon(0.1),
        ],
        ..Sampling::default()
    };
    let last = [Stage::Typical(0.9), Stage::Epsilon(0.1)];
    let first = [penalties, Stage::NoRepeatNgram(2)];
    let drawn = [
        Stage::TopNSigma(1.5),
        Stage::Temperature(0.5),
        Stage::TopK(3),
    ];
    let all = [&first[..], &drawn, &last].concat();
    assert_eq!(sampling.chain(), all);
    assert_eq!(sampling.problem(), None);
    sampling.temperature = 0.0;
    assert_eq!(sampling.chain(), first);
    let dry = |multiplier, base| Stage::Dry {
        multiplier,
        base,
        allowed_length: 2,
        last_n: 64,
        breakers: vec![],
    };
    for (wrong, what) in [
        (Stage::Typical(0.0), "typical-p is 0"),
        (Stage::Epsilon(1.0), "epsilon cutoff is 1"),
        (Stage::Eta(f32::NAN), "eta cutoff is NaN"),
        (Stage::TopNSigma(-1.0), "top-n-sigma is -1"),
        (Stage::Temperature(0.0), "temperature is 0"),
        (dry(f32::INFINITY, 1.75), "multiplier is inf"),
        (dry(-1.0, 1.75), "multiplier is -1"),
        (dry(1.0, 0.0), "base is 0"),
    ] {
        sampling.further = vec![wrong];
        let problem = sampling.problem().expect(what);
        assert!(problem.contains(what), "{problem}");
    }
}

/// Deviation is of the tokens that are left.
#[test]
fn removed_tokens_have_no_deviation() {
    let history = History {
        tokens: &[],
        prompt: 0,
    };
    let gone = f32::NEG_INFINITY;
    let mut logits = [3.0, gone, 1.0, gone, 2.9];
    Stage::TopNSigma(0.5).apply(&mut logits, history);
    assert_eq!(logits, [3.0, gone, gone, gone, 2.9]);
}

#[test]
fn the_smallest_temperatures_are_greedy() {
    let history = History {
        tokens: &[0],
        prompt: 1,
    };
    for temperature in [0.0, f32::MIN_POSITIVE, 1e-30, 2e-5] {
        let sampling = Sampling {
            temperature,
            ..Sampling::default()
        };
        let mut logits = [30.0, 31.0, 40.0, 39.0];
        let token = Sampler::new(&sampling).choose(&mut logits, history);
        assert_eq!(token, 2, "temperature {temperature}");
    }
}

#[test]
fn logits_that_stages_made_infinite_share_what_is_likely() {
    let infinite = f32::INFINITY;
    assert_eq!(
        softmax(&[1.0, infinite, -infinite, infinite]),
        [0.0, 0.5, 0.0, 0.5]
    );
    assert_eq!(softmax(&[-infinite; 2]), [0.5; 2]);
    let mut logits = [3.0, 1.0, 2.0];
    let history = History {
        tokens: &[0],
        prompt: 1,
    };
    let sampling = Sampling {
        temperature: 1.0,
        repetition_penalty: 1e-40,
        ..Sampling::default()
    };
    assert_eq!(Sampler::new(&sampling).choose(&mut logits, history), 0);
}
