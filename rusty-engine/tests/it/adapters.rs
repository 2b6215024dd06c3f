//! LoRA adapters against PEFT's logits, on every device.

use super::{DEVICES, engine, golden};
use rusty_adapters::{combine, load};
use rusty_compiler::{KvFormat, SlotId};
use rusty_engine::Engine;
use safetensors::SafeTensors;
use serde_json::Value;

/// Adapters that are LoRA of linear layers and nothing else.
const PLAIN: [&str; 8] = [
    "llama-lora-all",
    "llama-lora-qo",
    "qwen3-lora-all",
    "qwen3-lora-all-b",
    "qwen3-lora-patterns",
    "qwen3-lora-qv",
    "qwen3-lora-regex",
    "qwen3-rslora",
];

struct Golden {
    manifest: Value,
    expected: Vec<u8>,
}

impl Golden {
    fn read(folder: &str) -> Self {
        let read = |file: &str| std::fs::read(golden(folder).join(file)).expect(folder);
        Self {
            manifest: serde_json::from_slice(&read("manifest.json")).expect("json"),
            expected: read("expected.safetensors"),
        }
    }

    fn base(&self) -> &str {
        self.manifest["base"].as_str().expect("base")
    }

    fn tensor(&self, name: &str) -> Vec<u8> {
        let tensors = SafeTensors::deserialize(&self.expected).expect("safetensors");
        tensors.tensor(name).expect(name).data().to_vec()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        let bytes = self.tensor(name);
        bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|b| i64::from_le_bytes(*b) as u32)
            .collect()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = self.tensor(name);
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    }
}

fn assert_close(what: &str, have: &[f32], want: &[f32]) {
    assert_eq!(have.len(), want.len(), "{what}");
    let apart = have
        .iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart <= 1e-3, "{what}: {apart}");
}

fn check_prompts(engine: &Engine, slot: SlotId, golden: &Golden, what: &str) {
    for prompt in golden.manifest["prompts"].as_array().expect("prompts") {
        let name = |key: &str| prompt[key].as_str().expect(key);
        let have = engine.logits(&golden.ids(name("ids")), slot).expect(what);
        assert_close(what, &have, &golden.floats(name("logits")));
    }
}

#[test]
fn plain_adapters_match_peft() {
    for device in DEVICES {
        for base in ["models/qwen3-tied", "models/llama-llama3rope-sharded"] {
            let engine = engine(base, device, KvFormat::F32);
            for name in PLAIN {
                let golden_data = Golden::read(&format!("adapters/{name}"));
                if golden_data.base() != base {
                    continue;
                }
                let path = golden(&format!("adapters/{name}"));
                let slot = engine
                    .attach(load(&path, engine.graph()).expect(name))
                    .expect(name);
                check_prompts(&engine, slot, &golden_data, &format!("{name} on {device}"));
                engine.detach(slot).expect(name);
            }
        }
    }
}

#[test]
fn sums_of_adapters_match_peft() {
    for combo in ["llama-two", "qwen3-one-scaled", "qwen3-three", "qwen3-two"] {
        let golden_data = Golden::read(&format!("adapter_combos/{combo}"));
        for device in DEVICES {
            let engine = engine(golden_data.base(), device, KvFormat::F32);
            let parts = golden_data.manifest["adapters"]
                .as_array()
                .expect("adapters");
            let parts: Vec<_> = parts
                .iter()
                .map(|p| load(&golden(p.as_str().expect("path")), engine.graph()).expect(combo))
                .collect();
            for case in golden_data.manifest["cases"].as_array().expect("cases") {
                // `linear` multiplies factors across adapters; it is not a sum of deltas.
                if case["how"] == "linear" {
                    continue;
                }
                let weight = |i: usize| case["weights"][i].as_f64().map_or(1.0, |w| w as f32);
                let weighted: Vec<_> = parts
                    .iter()
                    .enumerate()
                    .map(|(i, p)| (p.clone(), weight(i)))
                    .collect();
                let slot = engine.attach(combine(&weighted)).expect(combo);
                let have = engine.logits(&golden_data.ids("ids"), slot).expect(combo);
                let want = golden_data.floats(case["logits"].as_str().expect("logits"));
                assert_close(&format!("{combo} {case} on {device}"), &have, &want);
                engine.detach(slot).expect(combo);
            }
        }
    }
}

/// What is not plain LoRA is refused by name instead of being half applied.
#[test]
fn other_adapters_are_refused() {
    let mut refused = 0;
    for entry in std::fs::read_dir(golden("adapters")).expect("adapters") {
        let path = entry.expect("entry").path();
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .expect("name")
            .to_string();
        if PLAIN.contains(&name.as_str()) {
            continue;
        }
        let golden_data = Golden::read(&format!("adapters/{name}"));
        let file = rusty_loader::open(golden(golden_data.base())).expect("base");
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let error = load(&path, &graph)
            .err()
            .unwrap_or_else(|| panic!("{name} was loaded"));
        assert!(error.to_string().contains(&name), "{error}");
        refused += 1;
    }
    assert!(refused > 5);
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
        match load(&golden(&format!("hostile/{path}")), &graph) {
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
