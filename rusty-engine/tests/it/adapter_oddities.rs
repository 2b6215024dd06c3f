//! Adapter files that say more, less or other than they should: taken whole or refused by name, never in part.

use super::warnings::told;
use super::{Tensors, engine, golden, tensors};
use rusty_adapters::{Container, Precision, export, load};
use rusty_backend::DeviceChoice;
use rusty_compiler::KvFormat;
use rusty_engine::{Engine, OnRunning};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tracing::Level;

const BASE: &str = "models/qwen3-tied";
const ATTENTION: &str = "base_model.model.model.layers.0.self_attn.q_proj";

/// The tensors of an adapter, to be changed and written anew.
pub struct Adapter {
    pub config: Value,
    pub tensors: Tensors,
}

impl Adapter {
    pub fn golden(name: &str) -> Self {
        Self::read(&golden(&format!("adapters/{name}")))
    }

    pub fn read(folder: &Path) -> Self {
        let config = std::fs::read(folder.join("adapter_config.json")).expect("config");
        Self {
            config: serde_json::from_slice(&config).expect("config"),
            tensors: tensors(&folder.join("adapter_model.safetensors")),
        }
    }

    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join("adapter");
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("folder");
        std::fs::write(path.join("adapter_config.json"), self.config.to_string()).expect("config");
        let bytes = |v: &Vec<f32>| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let data: Vec<(&String, &Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(n, (s, v))| (n, s, bytes(v)))
            .collect();
        let views = data.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, (*shape).clone(), bytes).expect("view");
            (name.as_str(), view)
        });
        let file = path.join("adapter_model.safetensors");
        safetensors::serialize_to_file(views, None, &file).expect("written");
        path
    }

    fn put(&mut self, name: &str, shape: &[usize], values: Vec<f32>) {
        self.tensors.insert(name.into(), (shape.to_vec(), values));
    }
}

fn logits(engine: &Engine, path: &Path) -> Vec<f32> {
    let tokens: Vec<u32> = (0..12).map(|i| i * 13 % 200).collect();
    let id = engine
        .attach_file(path, Precision::Stored)
        .expect("attached");
    let logits = engine.logits(&tokens, id).expect("logits");
    engine.detach(id).expect("detached");
    logits
}

fn refusal(engine: &Engine, path: &Path) -> String {
    let error = engine.attach_file(path, Precision::Stored);
    error.expect_err("it should be refused").to_string()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// PEFT saves embeddings and heads whole beside their factors.
#[test]
fn base_weights_beside_factors_are_the_models_or_take_their_place() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASE, DeviceChoice::Cpu, KvFormat::F32);
    let embedding =
        tensors(&golden(BASE).join("model.safetensors"))["model.embed_tokens.weight"].clone();
    let plain = Adapter::golden("qwen3-lora-embed");
    let want = logits(&engine, &plain.write(folder.path()));
    let base = engine.logits(&(0..12).map(|i| i * 13 % 200).collect::<Vec<u32>>(), None);
    let modules = ["model.embed_tokens", "lm_head"];
    let stem = |m: &str| format!("base_model.model.{m}.base_layer.weight");
    let module = modules.into_iter().find(|m| {
        let prefix = format!("base_model.model.{m}.");
        plain.tensors.keys().any(|k| k.starts_with(&prefix))
    });
    let name = stem(module.expect("embedding or head"));
    let mut same = Adapter::golden("qwen3-lora-embed");
    same.put(&name, &embedding.0, embedding.1.clone());
    let have = logits(&engine, &same.write(folder.path()));
    assert!(apart(&have, &want) < 1e-5);
    assert!(apart(&have, &base.expect("base")) > 0.1);
    // Another weight stands in for the model's, and the factors act on it.
    let mut other = Adapter::golden("qwen3-lora-embed");
    let doubled = embedding.1.iter().map(|v| v * 2.0).collect();
    other.put(&name, &embedding.0, doubled);
    let have = logits(&engine, &other.write(folder.path()));
    assert!(apart(&have, &want) > 0.1);
}

/// Whole weights that the configuration does not speak of are there because PEFT saves embeddings beside adapters: the model's own
/// change nothing, and the adapter can be weighted.
#[test]
fn copies_of_the_models_weights_are_left_out() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASE, DeviceChoice::Cpu, KvFormat::F32);
    let model = tensors(&golden(BASE).join("model.safetensors"));
    let embedding = &model["model.embed_tokens.weight"];
    let mut adapter = Adapter::golden("qwen3-lora-qv");
    let want = logits(&engine, &adapter.write(folder.path()));
    for module in ["model.embed_tokens", "lm_head"] {
        let name = format!("base_model.model.{module}.weight");
        adapter.put(&name, &embedding.0, embedding.1.clone());
    }
    let path = adapter.write(folder.path());
    let apart_from_plain = apart(&logits(&engine, &path), &want);
    assert!(apart_from_plain < 1e-5, "{apart_from_plain}");
    let id = engine
        .attach_file(&path, Precision::Stored)
        .expect("attached");
    engine
        .set_weight(id, 0.5, OnRunning::Refuse)
        .expect("weighted");
    engine.detach(id).expect("detached");
    // A configuration that speaks of them means them: a head of its own, though it is the same.
    adapter.config["modules_to_save"] = json!(["lm_head"]);
    let path = adapter.write(folder.path());
    let held = |path: &Path| load(path, &engine.adapter_base(), Precision::Stored);
    let held = held(&path).expect("an adapter");
    assert!(
        held.sites
            .iter()
            .any(|(id, _)| engine.graph().site(*id).name == "output")
    );
    // Of one token's row alone, too.
    let (name, mut one) = (
        "base_model.model.model.embed_tokens.weight",
        embedding.1.clone(),
    );
    one[..embedding.0[1]].iter_mut().for_each(|v| *v *= 1.1);
    adapter.config["modules_to_save"] = json!(null);
    adapter.put(name, &embedding.0, one);
    assert!(apart(&logits(&engine, &adapter.write(folder.path())), &want) > 1e-4);
    // What was trained is a little apart, and counts; a tied head follows it unless the embedding was copied to be trained.
    let trained: Vec<f32> = embedding.1.iter().map(|v| v * 1.05).collect();
    let mut with = |modules: &[&str], saved: Value| {
        adapter.tensors.retain(|name, _| {
            !name.ends_with("embed_tokens.weight") && !name.ends_with("lm_head.weight")
        });
        for module in modules {
            let name = format!("base_model.model.{module}.weight");
            adapter.put(&name, &embedding.0, trained.clone());
        }
        adapter.config["modules_to_save"] = saved;
        logits(&engine, &adapter.write(folder.path()))
    };
    let (own, both) = (["model.embed_tokens"], ["model.embed_tokens", "lm_head"]);
    let alone = with(&own, json!(["embed_tokens"]));
    let tied = with(&own, json!(null));
    assert!(apart(&alone, &want) > 1e-4);
    assert!(apart(&tied, &alone) > 1e-4);
    assert_eq!(tied, with(&both, json!(null)));
    assert_eq!(tied, with(&both, json!(["embed_tokens", "lm_head"])));
}

/// IA3's vectors say by their shape which side they are for; it must be the side that the configuration says.
#[test]
fn gains_of_the_other_side_are_refused_with_both_shapes() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASE, DeviceChoice::Cpu, KvFormat::F32);
    let mut adapter = Adapter::golden("qwen3-ia3");
    let want = logits(&engine, &adapter.write(folder.path()));
    // As a trainer may say it, with what Rust's own expressions do not know.
    adapter.config["feedforward_modules"] = json!(r"(?!.*self_attn).*\.down_proj\Z");
    assert_eq!(logits(&engine, &adapter.write(folder.path())), want);
    adapter.config["feedforward_modules"] = json!([]);
    let error = refusal(&engine, &adapter.write(folder.path()));
    assert!(
        error.contains("down_proj") && error.contains("[1, "),
        "{error}"
    );
    assert!(error.contains(", 1]"), "{error}");
}

/// What PEFT would refuse, or leave out with a warning.
#[test]
fn tensors_that_contradict_the_configuration_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("folder");
    let cases = [
        ("qwen3-loha", "r", json!(8), "hada_w1_b"),
        ("qwen3-lokr-both", "r", json!(8), "lokr_w1_a"),
        ("llama-vera", "r", json!(8), "vera_A"),
        (
            "qwen3-dora",
            "use_dora",
            json!(false),
            "lora_magnitude_vector",
        ),
        (
            "qwen3-lora-all",
            "exclude_modules",
            json!(["q_proj"]),
            "q_proj",
        ),
        (
            "qwen3-lora-all",
            "exclude_modules",
            json!(r".*\.q_(?=proj).*"),
            "q_proj",
        ),
    ];
    for (name, key, value, said) in cases {
        let mut adapter = Adapter::golden(name);
        let base = adapter.config["base_model_name_or_path"]
            .as_str()
            .expect("base");
        let engine = engine(base, DeviceChoice::Cpu, KvFormat::F32);
        logits(&engine, &adapter.write(folder.path()));
        adapter.config[key] = value;
        let error = refusal(&engine, &adapter.write(folder.path()));
        assert!(error.contains(said), "{name}, {key}: {error}");
    }
}

/// Settings that nothing is known of may change what an adapter computes, so they are told; PEFT's own are all known.
#[test]
fn unknown_settings_are_told() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASE, DeviceChoice::Cpu, KvFormat::F32);
    let mut adapter = Adapter::golden("qwen3-lora-all");
    let read = |adapter: &Adapter| {
        let path = adapter.write(folder.path());
        told(Level::WARN, || {
            logits(&engine, &path);
        })
    };
    assert_eq!(read(&adapter), "");
    adapter.config["use_foresight"] = json!(true);
    adapter.config["use_hindsight"] = json!(false);
    let said = read(&adapter);
    assert!(
        said.contains("'use_foresight'") && !said.contains("hindsight"),
        "{said}"
    );
}

#[test]
fn a_saved_layer_brings_its_bias() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine("models/qwen2-bias", DeviceChoice::Cpu, KvFormat::F32);
    let model = tensors(&golden("models/qwen2-bias").join("model.safetensors"));
    let part = |leaf: &str| model[&format!("model.layers.0.self_attn.q_proj.{leaf}")].clone();
    let (weight, bias) = (part("weight"), part("bias"));
    let mut adapter = Adapter {
        config: json!({
            "peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": [],
            "modules_to_save": ["q_proj"],
        }),
        tensors: BTreeMap::new(),
    };
    adapter.put(&format!("{ATTENTION}.weight"), &weight.0, weight.1);
    let without = logits(&engine, &adapter.write(folder.path()));
    let moved = bias.1.iter().map(|v| v + 1.0).collect();
    adapter.put(&format!("{ATTENTION}.bias"), &bias.0, moved);
    let with = logits(&engine, &adapter.write(folder.path()));
    assert!(apart(&with, &without) > 1e-3);
}

/// Trainers, compilers and models around a text model each name its layers in their way.
#[test]
fn names_are_known_whatever_wraps_the_model() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASE, DeviceChoice::Cpu, KvFormat::F32);
    let golden = || Adapter::golden("qwen3-lora-all");
    let want = logits(&engine, &golden().write(folder.path()));
    let renamed = |rename: &dyn Fn(&str) -> String| {
        let mut adapter = golden();
        let tensors = std::mem::take(&mut adapter.tensors).into_iter();
        adapter.tensors = tensors.map(|(name, t)| (rename(&name), t)).collect();
        adapter.write(folder.path())
    };
    for prefix in [
        "",
        "model.",
        "base_model.model.",
        "base_model.model.language_model.model.",
        "base_model.model.model.language_model.",
        "base_model.model.model.text_model.",
        "base_model.model._orig_mod.model.",
        "module.base_model.model.model.",
        "_orig_mod.module.model.",
    ] {
        let path = renamed(&|name| name.replacen("base_model.model.model.", prefix, 1));
        assert!(logits(&engine, &path) == want, "'{prefix}'");
    }
    let path = renamed(&|name| name.replace(".self_attn.", "._fsdp_wrapped_module.self_attn."));
    assert!(logits(&engine, &path) == want, "wrapped layers");
    let path = renamed(&|name| name.replace(".weight", ".sql.weight"));
    assert!(logits(&engine, &path) == want, "an adapter's name");
    let path = renamed(&|name| name.replace("base_model.model.model.", "vision_tower."));
    let error = refusal(&engine, &path);
    assert!(error.contains("vision_tower"), "{error}");
    let mut two = golden();
    let (name, tensor) = two.tensors.first_key_value().expect("tensors");
    let (name, tensor) = (name.replace(".weight", ".other.weight"), tensor.clone());
    two.tensors.insert(name, tensor);
    let error = refusal(&engine, &two.write(folder.path()));
    assert!(error.contains("names of two adapters"), "{error}");
}

#[test]
fn tensors_and_settings_that_would_be_left_out_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASE, DeviceChoice::Cpu, KvFormat::F32);
    let (_, first) = Adapter::golden("qwen3-lora-all")
        .tensors
        .pop_first()
        .expect("tensors");
    for stranger in ["ia3_l", "lokr_w1", "hada_w1_a", "weight"] {
        let mut adapter = Adapter::golden("qwen3-lora-all");
        adapter.put(
            &format!("{ATTENTION}.{stranger}"),
            &first.0,
            first.1.clone(),
        );
        let error = refusal(&engine, &adapter.write(folder.path()));
        assert!(error.contains("q_proj"), "{stranger}: {error}");
    }
    let mut twice = Adapter::golden("qwen3-lora-all");
    for end in ["lora_A.weight", "lora_B.weight"] {
        let (shape, values) = twice.tensors[&format!("{ATTENTION}.{end}")].clone();
        let name = format!("base_model.model.layers.0.self_attn.q_proj.{end}");
        twice.put(&name, &shape, values);
    }
    let error = refusal(&engine, &twice.write(folder.path()));
    assert!(error.contains("two names"), "{error}");
    for (key, value) in [
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("loftq")),
        ("init_lora_weights", json!("OLoRA")),
        ("init_lora_weights", json!("lora_ga")),
        ("rank_pattern", json!([8])),
        ("use_dora", json!(true)),
        ("ensure_weight_tying", json!(true)),
    ] {
        let mut adapter = Adapter::golden("qwen3-lora-all");
        adapter.config[key] = value.clone();
        refusal(&engine, &adapter.write(folder.path()));
    }
    let mut huge = Adapter::golden("qwen3-lora-all");
    huge.config["lora_alpha"] = json!(1e300);
    let error = refusal(&engine, &huge.write(folder.path()));
    assert!(error.contains("overflow"), "{error}");
}

/// Adds ranks of zeros to the factors `first [n, r]` and `second [r, k]` of every module.
fn widen(adapter: &mut Adapter, first: &str, second: &str, rank: usize) {
    for (name, (shape, values)) in &mut adapter.tensors {
        if name.ends_with(second) {
            let k = shape[1];
            values.resize(rank * k, 0.0);
            *shape = vec![rank, k];
        } else if name.ends_with(first) {
            let rows = values.chunks_exact(shape[1]).map(|row| {
                let mut row = row.to_vec();
                row.resize(rank, 0.0);
                row
            });
            *values = rows.flatten().collect();
            *shape = vec![shape[0], rank];
        }
    }
}

/// Their factors' ranks multiply: tables of all of them would take gigabytes here.
#[test]
fn products_of_many_ranks_are_no_larger_than_the_weight() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASE, DeviceChoice::Cpu, KvFormat::F32);
    for (name, pairs, rank) in [
        (
            "qwen3-loha",
            [("hada_w1_a", "hada_w1_b"), ("hada_w2_a", "hada_w2_b")],
            3000,
        ),
        (
            "qwen3-loha",
            [("hada_w1_a", "hada_w1_b"), ("hada_w2_a", "hada_w2_b")],
            7,
        ),
        (
            "qwen3-lokr-both",
            [("lokr_w1_a", "lokr_w1_b"), ("lokr_w2_a", "lokr_w2_b")],
            5000,
        ),
    ] {
        let mut adapter = Adapter::golden(name);
        let want = logits(&engine, &adapter.write(folder.path()));
        for (first, second) in pairs {
            widen(&mut adapter, first, second, rank);
        }
        let scale = |key: &str| adapter.config[key].as_f64().expect(key);
        adapter.config["alpha"] = json!(scale("alpha") / scale("r") * rank as f64);
        adapter.config["r"] = json!(rank);
        let have = logits(&engine, &adapter.write(folder.path()));
        assert!(apart(&have, &want) < 1e-4, "{name} of {rank} ranks");
    }
}

#[test]
fn layers_that_the_configuration_leaves_out_have_no_tensors() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASE, DeviceChoice::Cpu, KvFormat::F32);
    let mut adapter = Adapter::golden("qwen3-lora-all");
    for layers in [json!(null), json!([]), json!([0, 1, 2, 3])] {
        adapter.config["layers_to_transform"] = layers;
        logits(&engine, &adapter.write(folder.path()));
    }
    for layers in [json!([0]), json!(1), json!("all")] {
        adapter.config["layers_to_transform"] = layers;
        let error = refusal(&engine, &adapter.write(folder.path()));
        assert!(error.contains("layers_to_transform"), "{error}");
    }
    adapter
        .tensors
        .retain(|name, _| name.contains(".layers.0."));
    adapter.config["layers_to_transform"] = json!(0);
    logits(&engine, &adapter.write(folder.path()));
}

/// As in llama.cpp: the deltas count as they are.
#[test]
fn ggufs_that_state_no_alpha_are_not_scaled() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(super::adapters::BASES[1], DeviceChoice::Cpu, KvFormat::F32);
    let base = engine.adapter_base();
    // Its alpha is its rank.
    let path = golden("adapters/llama-lora-all");
    let adapter = load(&path, &base, Precision::Stored).expect("adapter");
    let out = folder.path().join("good.gguf");
    export(&adapter, &base, &out, Container::Gguf).expect("written");
    let want = logits(&engine, &out);
    let file = rusty_loader::gguf::Gguf::open(&out).expect("gguf");
    for alpha in [None, Some(0.0)] {
        let mut writer = rusty_loader::gguf::write::GgufWriter::new("llama");
        let given = ["general.architecture", "adapter.lora.alpha"];
        for (key, value) in file
            .meta
            .iter()
            .filter(|(k, _)| !given.contains(&k.as_str()))
        {
            writer.meta(key, value.clone());
        }
        if let Some(alpha) = alpha {
            writer.meta("adapter.lora.alpha", rusty_loader::Meta::F64(alpha));
        }
        for info in &file.tensors {
            let shape: Vec<usize> = info.shape.iter().map(|d| *d as usize).collect();
            let format = rusty_loader::Format::by_ggml_type(info.kind.id).expect("format");
            writer.tensor(&info.name, format, &shape);
        }
        let path = folder.path().join("unscaled.gguf");
        let write = |name: &str, out: &mut dyn std::io::Write| {
            let info = file
                .tensors
                .iter()
                .find(|t| t.name == name)
                .expect("tensor");
            out.write_all(&file.tensor_bytes(info).expect("bytes"))
        };
        writer.save(&path, write).expect("written");
        assert!(apart(&logits(&engine, &path), &want) < 1e-6, "{alpha:?}");
    }
}
