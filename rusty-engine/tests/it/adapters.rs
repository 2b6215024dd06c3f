//! Adapters against PEFT's logits, on every device.

use super::expected::Expected;
use super::{devices, engine, golden};
use rusty_adapters::{Base, Mix, Precision, load};
use rusty_backend::DeviceChoice;
use rusty_compiler::KvFormat;
use rusty_engine::{AdapterId, AdapterSet, Engine, Prompt, Request};
use serde_json::Value;

/// Models that golden adapters are for.
pub const BASES: [&str; 3] = [
    "models/qwen3-tied",
    "models/llama-llama3rope-sharded",
    "models/llama-mha-f16",
];

/// What PEFT made of an adapter, or of a mixture of some.
pub struct Golden {
    pub manifest: Value,
    pub expected: Expected,
}

impl Golden {
    pub fn read(folder: &str) -> Self {
        let manifest = std::fs::read(golden(folder).join("manifest.json")).expect(folder);
        Self {
            manifest: serde_json::from_slice(&manifest).expect("json"),
            expected: Expected::read(folder),
        }
    }

    pub fn base(&self) -> &str {
        self.manifest["base"].as_str().expect("base")
    }
}

pub fn assert_close(what: &str, have: &[f32], want: &[f32]) {
    assert_eq!(have.len(), want.len(), "{what}");
    let apart = have
        .iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart <= 1e-3, "{what}: {apart}");
}

pub fn check_prompts(engine: &Engine, adapter: AdapterId, golden: &Golden, what: &str) {
    for prompt in golden.manifest["prompts"].as_array().expect("prompts") {
        let name = |key: &str| prompt[key].as_str().expect(key);
        let ids = golden.expected.ids(name("ids")).expect("ids");
        let have = engine.logits(&ids, adapter).expect(what);
        assert_close(what, &have, &golden.expected.floats(name("logits")));
    }
}

pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(golden("adapters")).expect("adapters");
    let name = |e: std::io::Result<std::fs::DirEntry>| e.expect("entry").file_name();
    let mut names: Vec<String> = entries
        .map(|e| name(e).into_string().expect("name"))
        .collect();
    names.sort();
    names
}

/// Every kind: LoRA with its variants, DoRA, IA3, LoHa, LoKr, VeRA, soft prompts, whole modules.
#[test]
fn adapters_of_every_kind_match_peft() {
    let names = names();
    assert!(names.len() >= 23);
    for device in devices() {
        let mut seen = 0;
        for base in BASES {
            let engine = engine(base, device, KvFormat::F32);
            for name in &names {
                let golden_data = Golden::read(&format!("adapters/{name}"));
                if golden_data.base() != base {
                    continue;
                }
                let path = golden(&format!("adapters/{name}"));
                let id = engine.attach_file(&path, Precision::Stored).expect(name);
                check_prompts(&engine, id, &golden_data, &format!("{name} on {device}"));
                engine.detach(id).expect(name);
                seen += 1;
            }
        }
        assert_eq!(seen, names.len(), "{device}");
    }
}

#[test]
fn mixtures_of_adapters_match_peft() {
    for combo in ["llama-two", "qwen3-one-scaled", "qwen3-three", "qwen3-two"] {
        let golden_data = Golden::read(&format!("adapter_combos/{combo}"));
        for device in devices() {
            let engine = engine(golden_data.base(), device, KvFormat::F32);
            let parts = golden_data.manifest["adapters"]
                .as_array()
                .expect("adapters");
            let attach = |p: &Value| {
                let path = golden(p.as_str().expect("path"));
                engine.attach_file(&path, Precision::Stored).expect(combo)
            };
            let parts: Vec<AdapterId> = parts.iter().map(attach).collect();
            for case in golden_data.manifest["cases"].as_array().expect("cases") {
                let how = match case["how"].as_str() {
                    Some("linear") => Mix::Linear,
                    _ => Mix::Sum,
                };
                let weight = |i: usize| case["weights"][i].as_f64().map_or(1.0, |w| w as f32);
                let entries = parts.iter().enumerate().map(|(i, id)| (*id, weight(i)));
                let set = AdapterSet::mixed(entries, how);
                let ids = golden_data.expected.ids("ids").expect("ids");
                let have = engine.logits(&ids, set).expect(combo);
                let logits = case["logits"].as_str().expect("logits");
                let want = golden_data.expected.floats(logits);
                assert_close(&format!("{combo} {case} on {device}"), &have, &want);
            }
        }
    }
}

/// Malformed adapters end as their case says, and an error names the adapter.
#[test]
fn hostile_adapters_end_as_expected() {
    let cases = std::fs::read(golden("hostile/cases.json")).expect("cases");
    let cases: Vec<Value> = serde_json::from_slice(&cases).expect("json");
    let base = rusty_loader::open(golden("hostile/checkpoint/control-valid")).expect("base");
    let graph = rusty_graph::arch::build(&*base).expect("graph");
    let mut seen = 0;
    for case in cases.iter().filter(|c| c["kind"] == "adapter") {
        let path = case["path"].as_str().expect("path");
        let base = Base::new(&graph, &*base);
        match load(
            &golden(&format!("hostile/{path}")),
            &base,
            Precision::Stored,
        ) {
            Ok(_) => assert_eq!(case["expect"], "ok", "{path} was accepted: {}", case["why"]),
            Err(error) => {
                assert_eq!(case["expect"], "error", "{path}: {error}");
                let name = path.rsplit('/').next().expect("name");
                assert!(error.to_string().contains(name), "{path}: {error}");
            }
        }
        seen += 1;
    }
    assert!(seen >= 12);
}

/// They would be rows of the prompt or of nothing; a step that refuses one ends everybody's answers.
#[test]
fn ids_behind_the_vocabulary_are_refused_before_a_step() {
    for name in ["adapters/qwen3-prefix", "adapters/qwen3-prompt"] {
        let engine = engine(BASES[0], DeviceChoice::Cpu, KvFormat::F32);
        let id = engine
            .attach_file(&golden(name), Precision::Stored)
            .expect(name);
        for token in [engine.vocab(), engine.vocab() + 3, u32::MAX] {
            let error = engine
                .logits(&[1, token], id)
                .expect_err("refused")
                .to_string();
            assert!(error.contains("vocabulary"), "{error}");
            let mut session = engine.session();
            let request = Request::new(Prompt::Tokens(vec![1, token]));
            assert!(session.generate(&request).is_err());
        }
        engine.logits(&[1, 2], id).expect("the engine goes on");
    }
}
