//! Adapters of routed experts, of latent attention's heads, and DoRA of an embedding, against PEFT's logits (`tests/peft_adapters`), on every device and
//! through every file that Rusty writes of them.

use super::adapter_misfits::{check, gguf_tensors, write_gguf};
use super::adapter_oddities::Adapter;
use super::adapters::{Golden, assert_close, check_prompts};
use super::gguf_twin::twin;
use super::{devices, engine, golden, logits, open};
use rusty_adapters::merge::{Method, merge};
use rusty_adapters::{Base, Container, Precision, export, load, packed};
use rusty_compiler::{KvFormat, SlotData};
use rusty_engine::Engine;
use rusty_loader::gguf::Gguf;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Names; whether files of PEFT's and of llama.cpp's can state them as Rusty writes those: low ranks on experts.
const CASES: [(&str, bool); 13] = [
    ("deepseek-v2-lite-lora", false),
    ("deepseek-v3-lora", false),
    ("mixtral-ia3", false),
    ("mixtral-loha", true),
    ("mixtral-lora", true),
    ("mixtral-parameters", true),
    ("qwen3-dora-embed", false),
    ("qwen3-moe-dora", false),
    ("qwen3-moe-lokr", true),
    ("qwen3-moe-lora", true),
    ("qwen3-moe-parameters", true),
    ("qwen3-moe-parameters-swapped", true),
    ("qwen3-moe-vera", true),
];

/// Beside the goldens.
fn folder(name: &str) -> String {
    format!("../peft_adapters/{name}")
}

fn path(name: &str) -> PathBuf {
    golden(&folder(name))
}

#[test]
fn adapters_of_experts_and_heads_match_peft() {
    let stored = std::fs::read_dir(golden("../peft_adapters")).expect("folder");
    let folders = stored.filter(|entry| entry.as_ref().is_ok_and(|e| e.path().is_dir()));
    assert_eq!(folders.count(), CASES.len());
    for device in devices() {
        for (name, _) in CASES {
            let about = Golden::read(&folder(name));
            let engine = engine(about.base(), device, KvFormat::F32);
            let id = engine.attach_file(&path(name), Precision::Stored);
            let what = format!("{name} on {device}");
            check_prompts(&engine, id.expect(name), &about, &what);
        }
    }
}

/// The prompts of a case with an adapter that was written anew.
fn check_file(engine: &Engine, name: &str, file: &Path) {
    let id = engine.attach_file(file, Precision::Stored).expect(name);
    let what = format!("{name} as {}", file.display());
    check_prompts(engine, id, &Golden::read(&folder(name)), &what);
    engine.detach(id).expect(name);
}

#[test]
fn files_written_of_them_say_the_same() {
    let scratch = tempfile::tempdir().expect("folder");
    let mut refused = 0;
    for (name, plain) in CASES {
        let engine = open(&golden(Golden::read(&folder(name)).base()));
        let base = engine.adapter_base();
        let adapter = load(&path(name), &base, Precision::Stored).expect(name);
        for deflate in [false, true] {
            let out = scratch.path().join(format!("{name}-{deflate}.safetensors"));
            packed::pack(&adapter, &base, &out, deflate).expect(name);
            check_file(&engine, name, &out);
        }
        for (container, end) in [(Container::Peft, "peft"), (Container::Gguf, "gguf")] {
            let out = scratch.path().join(name).with_extension(end);
            match export(&adapter, &base, &out, container) {
                Ok(()) => check_file(&engine, name, &out),
                Err(error) => {
                    assert!(!plain, "{error}");
                    let why = ["DoRA, IA3", "attn_k_b", "a whole embedding"];
                    let error = error.to_string();
                    assert!(why.iter().any(|w| error.contains(w)), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!(refused, 2 * 5);
}

/// From a checkpoint, where experts and the heads' expansion are stored by matrix and whole, and from a GGUF, where they are stacks.
#[test]
fn merged_models_say_the_same() {
    let scratch = tempfile::tempdir().expect("folder");
    for (name, _) in CASES {
        let base = golden(Golden::read(&folder(name)).base());
        let gguf = scratch.path().join(format!("base-{name}.gguf"));
        let file = rusty_loader::open(&base).expect(name);
        std::fs::write(&gguf, twin(&*file)).expect("written");
        for source in [base, gguf] {
            let engine = open(&source);
            let model = engine.adapter_base();
            let adapter = load(&path(name), &model, Precision::Stored).expect(name);
            let end = if source.is_dir() { "" } else { "gguf" };
            let out = scratch.path().join(name).with_extension(end);
            let paths = (&*source, &*out);
            let done = merge(
                &[(&adapter, 1.0)],
                Method::Linear,
                &model,
                paths,
                &|_, _| {},
            );
            done.expect(name);
            let id = engine.attach(adapter).expect(name);
            let want = logits(&engine, id);
            let have = logits(&open(&out), None);
            let apart = have.iter().zip(&want).map(|(a, b)| (a - b).abs());
            let mean = apart.clone().sum::<f32>() / have.len() as f32;
            // The checkpoint's weights have 16 bits, and so have merged ones.
            let bound = if source.is_dir() { 0.1 } else { 1e-5 };
            assert!(mean <= bound, "{name} of {}: {mean}", source.display());
            assert_close(name, &logits(&engine, id), &want);
        }
    }
}

/// Of a checkpoint's adapters and of GGUFs.
#[test]
fn tensors_that_do_not_fit_are_named_with_both_shapes() {
    let scratch = tempfile::tempdir().expect("folder");
    let mut refused = 0;
    for name in ["deepseek-v3-lora", "qwen3-moe-lora", "qwen3-moe-parameters"] {
        let file = rusty_loader::open(golden(Golden::read(&folder(name)).base())).expect(name);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let model = Base::new(&graph, &*file);
        let Adapter { config, tensors } = Adapter::read(&path(name));
        refused += check(&tensors, &|tensors| {
            let adapter = Adapter {
                config: config.clone(),
                tensors: tensors.clone(),
            };
            load(&adapter.write(scratch.path()), &model, Precision::Stored)
        });
    }
    assert!(refused >= 60, "{refused}");
}

fn refusal(adapter: &Adapter, model: &Base<'_>, scratch: &Path) -> String {
    let path = adapter.write(scratch);
    let error = load(&path, model, Precision::Stored).map(|_| ());
    error.expect_err("it should be refused").to_string()
}

#[test]
fn what_parameters_cannot_have_is_refused_by_name() {
    let scratch = tempfile::tempdir().expect("folder");
    let name = "qwen3-moe-parameters";
    let file = rusty_loader::open(golden(Golden::read(&folder(name)).base())).expect(name);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let model = Base::new(&graph, &*file);
    let changed = |key: &str, value| {
        let mut adapter = Adapter::read(&path(name));
        adapter.config[key] = value;
        refusal(&adapter, &model, scratch.path())
    };
    let error = changed(
        "target_parameters",
        json!(["mlp.gate.weight", "mlp.experts.down_proj"]),
    );
    let left_out = "experts.gate_up_proj, which the configuration's target_parameters leave out";
    assert!(error.contains(left_out), "{error}");
    let error = changed(
        "target_parameters",
        json!(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    );
    assert!(
        error.contains("mlp.gate, which the configuration's target_modules"),
        "{error}"
    );
    let error = changed("rank_pattern", json!({"gate_up_proj": 1e30}));
    assert!(error.contains("is no rank from 1 to"), "{error}");
    let error = changed("use_dora", json!(true));
    assert!(error.contains("anything but a plain LoRA of"), "{error}");
    let mut lone = Adapter::read(&path(name));
    lone.tensors
        .retain(|name, _| !name.ends_with("0.mlp.experts.lora_B.weight"));
    let error = refusal(&lone, &model, scratch.path());
    assert!(
        error.contains("has one factor without the other"),
        "{error}"
    );
}

/// Stacks of llama.cpp's files: of another number of experts, of none, and with a rank of their own.
#[test]
fn stacks_that_do_not_fit_are_named_with_both_shapes() {
    let scratch = tempfile::tempdir().expect("folder");
    let name = "qwen3-moe-lora";
    let file = rusty_loader::open(golden(Golden::read(&folder(name)).base())).expect(name);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let model = Base::new(&graph, &*file);
    let adapter: SlotData = load(&path(name), &model, Precision::Stored).expect(name);
    let out = scratch.path().join("good.gguf");
    export(&adapter, &model, &out, Container::Gguf).expect("written");
    let good = Gguf::open(&out).expect("gguf");
    let tensors = gguf_tensors(&good);
    let stack = "blk.0.ffn_up_exps.weight.lora_a";
    let (shape, values) = &tensors[stack];
    assert_eq!(shape, &[8, 7, 64]);
    let bad = scratch.path().join("bad.gguf");
    let error = |change: &dyn Fn(&mut super::Tensors)| {
        let mut tensors = tensors.clone();
        change(&mut tensors);
        write_gguf(&good, "qwen3moe", &tensors, &bad);
        let refused = load(&bad, &model, Precision::Stored).map(|_| ());
        refused.expect_err("it should be refused").to_string()
    };
    let fewer = (vec![7, 7, 64], values[..7 * 7 * 64].to_vec());
    let said = error(&|t| drop(t.insert(stack.into(), fewer.clone())));
    let want = "tensor 'blk.0.ffn_up_exps.weight.lora_a' has shape [7, 7, 64], the model's 'blk.0.ffn_up_exps' needs 8 matrices";
    assert!(said.contains(want), "{said}");
    let narrow = (vec![8, 7, 63], values[..8 * 7 * 63].to_vec());
    let said = error(&|t| drop(t.insert(stack.into(), narrow.clone())));
    assert!(
        said.contains("has shape [7, 63]") && said.contains("needs [7, 64]"),
        "{said}"
    );
    let said = error(&|t| drop(t.insert("blk.0.attn_q.weight.lora_a".into(), fewer.clone())));
    assert!(said.contains("no matrix for each expert or head"), "{said}");
}

/// Files of llama.cpp state no biases: they are not left out without a word.
#[test]
fn biases_of_experts_keep_them_from_ggufs() {
    let scratch = tempfile::tempdir().expect("folder");
    let name = "mixtral-lora";
    let file = rusty_loader::open(golden(Golden::read(&folder(name)).base())).expect(name);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let model = Base::new(&graph, &*file);
    let mut biased = Adapter::read(&path(name));
    let names: Vec<String> = biased.tensors.keys().cloned().collect();
    for name in names.iter().filter_map(|n| n.strip_suffix("lora_B.weight")) {
        let n = biased.tensors[&format!("{name}lora_B.weight")].0[0];
        let bias = (vec![n], vec![0.25; n]);
        biased.tensors.insert(format!("{name}lora_B.bias"), bias);
    }
    let path = biased.write(scratch.path());
    let adapter = load(&path, &model, Precision::Stored).expect("biased");
    let out = scratch.path().join("biased.gguf");
    let error = export(&adapter, &model, &out, Container::Gguf);
    let error = error.expect_err("it should be refused").to_string();
    assert!(error.contains("biases on some layers"), "{error}");
}
