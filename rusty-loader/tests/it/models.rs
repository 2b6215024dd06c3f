//! Golden models open under canonical keys and names, whichever the file and its spelling.

use std::path::Path;

use rusty_loader::meta::keys;
use rusty_loader::{Format, Meta, ModelFile, open};

use crate::golden_models::MODELS;
use crate::goldens;

const ALL_KEYS: [&str; 27] = [
    keys::BLOCK_COUNT,
    keys::CONTEXT_LENGTH,
    keys::EMBEDDING_LENGTH,
    keys::FEED_FORWARD_LENGTH,
    keys::HEAD_COUNT,
    keys::HEAD_COUNT_KV,
    keys::KEY_LENGTH,
    keys::VALUE_LENGTH,
    keys::RMS_EPSILON,
    keys::SLIDING_WINDOW,
    keys::ROPE_FREQ_BASE,
    keys::ROPE_DIMENSION_COUNT,
    keys::ROPE_SCALING_TYPE,
    keys::ROPE_SCALING_FACTOR,
    keys::ROPE_SCALING_ORIGINAL_CONTEXT,
    keys::ROPE_SCALING_ATTN_FACTOR,
    keys::ROPE_SCALING_BETA_FAST,
    keys::ROPE_SCALING_BETA_SLOW,
    keys::ROPE_SCALING_TRUNCATE,
    keys::ROPE_SCALING_LOW_FREQ_FACTOR,
    keys::ROPE_SCALING_HIGH_FREQ_FACTOR,
    keys::ROPE_LAYOUT,
    keys::VOCAB_SIZE,
    keys::TIE_WORD_EMBEDDINGS,
    keys::HIDDEN_ACT,
    keys::EOS_TOKEN_IDS,
    keys::BOS_TOKEN_ID,
];

fn canonical(model: &dyn ModelFile) -> Vec<(&'static str, Option<Meta>)> {
    ALL_KEYS
        .iter()
        .map(|&k| (k, model.meta(k).cloned()))
        .collect()
}

#[test]
fn both_spellings_of_a_configuration_mean_the_same() {
    let mut checked = 0;
    for name in MODELS {
        let folder = goldens::path(&format!("models/{name}"));
        // Those of `tests/architectures` are there in one spelling only.
        if !folder.join("config.legacy.json").exists() {
            continue;
        }
        let legacy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_str().unwrap();
            match file {
                "config.json" | "expected.safetensors" => {}
                "config.legacy.json" => copy(&path, &legacy.path().join("config.json")),
                _ => copy(&path, &legacy.path().join(file)),
            }
        }
        let (current, legacy) = (open(&folder).unwrap(), open(legacy.path()).unwrap());
        assert_eq!(canonical(&*current), canonical(&*legacy), "{name}");
        assert_eq!(current.tensor_names(), legacy.tensor_names(), "{name}");
        checked += 1;
    }
    assert!(checked >= 19, "{checked}");
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
}

#[test]
fn every_tensor_of_a_checkpoint_has_a_canonical_name() {
    for name in MODELS {
        let model = open(goldens::path(&format!("models/{name}"))).unwrap();
        let canonical = ["token_embd.", "output.", "output_norm.", "blk."];
        for tensor in model.tensor_names() {
            assert!(
                canonical.iter().any(|c| tensor.starts_with(c)),
                "{name}: {tensor}"
            );
        }
        let arch = match name {
            "deepseek-v2" | "deepseek-v2-lite" => "deepseek2",
            "deepseek-v3" => "deepseek3",
            "qwen3-moe" => "qwen3moe",
            _ => name.split('-').next().unwrap(),
        };
        assert_eq!(model.arch(), arch, "{name}");
    }
}

#[test]
fn rope_scaling_is_canonical() {
    let float = |model: &dyn ModelFile, key: &str| model.meta(key).and_then(Meta::as_f64);
    let model = open(goldens::path("models/llama-llama3rope-sharded")).unwrap();
    assert_eq!(model.meta(keys::ROPE_SCALING_TYPE), Some(&"llama3".into()));
    assert_eq!(float(&*model, keys::ROPE_SCALING_FACTOR), Some(8.0));
    assert_eq!(
        float(&*model, keys::ROPE_SCALING_ORIGINAL_CONTEXT),
        Some(32.0)
    );
    assert_eq!(float(&*model, keys::ROPE_FREQ_BASE), Some(500_000.0));
    let model = open(goldens::path("models/llama-yarn")).unwrap();
    assert_eq!(model.meta(keys::ROPE_SCALING_TYPE), Some(&"yarn".into()));
    assert_eq!(float(&*model, keys::ROPE_SCALING_ATTN_FACTOR), Some(1.3));
    assert_eq!(float(&*model, keys::ROPE_SCALING_BETA_FAST), Some(24.0));
    let model = open(goldens::path("models/mistral-window")).unwrap();
    assert!(model.meta(keys::SLIDING_WINDOW).is_some());
    assert_eq!(model.meta(keys::ROPE_SCALING_TYPE), Some(&"none".into()));
}

#[test]
fn gguf_gives_the_same_keys() {
    let model = open(goldens::path("gguf/llama/mix-Q4_K_M.gguf")).unwrap();
    assert_eq!(model.arch(), "llama");
    assert_eq!(model.meta(keys::VOCAB_SIZE), Some(&Meta::U64(416)));
    assert_eq!(model.meta(keys::ROPE_LAYOUT), Some(&"interleaved".into()));
    assert_eq!(
        model.meta(keys::TIE_WORD_EMBEDDINGS),
        Some(&Meta::Bool(false))
    );
    assert_eq!(
        model.meta(keys::EOS_TOKEN_IDS),
        Some(&[Meta::U64(2)].into_iter().collect())
    );
    assert_eq!(model.meta(keys::BOS_TOKEN_ID), Some(&Meta::U64(1)));
    let view = model.tensor("blk.1.attn_v.weight").unwrap();
    assert_eq!(
        (view.shape.as_slice(), view.format.name()),
        (&[64, 256][..], "q6_k")
    );
    assert!(view.bytes.is_mapped());

    let model = open(goldens::path("gguf/qwen3/Q4_0.gguf")).unwrap();
    assert_eq!(model.arch(), "qwen3");
    assert_eq!(model.meta(keys::ROPE_LAYOUT), Some(&"half".into()));
    assert_eq!(
        model.meta(keys::TIE_WORD_EMBEDDINGS),
        Some(&Meta::Bool(true))
    );
    assert_eq!(model.meta(keys::VOCAB_SIZE), Some(&Meta::U64(320)));
}

#[test]
fn generation_facts_come_from_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let control = goldens::path("hostile/checkpoint/control-valid");
    for file in ["config.json", "model.safetensors"] {
        copy(&control.join(file), &folder.path().join(file));
    }
    let put = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
    let model = open(folder.path()).unwrap();
    assert_eq!(
        model.meta(keys::EOS_TOKEN_IDS),
        Some(&[Meta::U64(2)].into_iter().collect())
    );
    put(
        "generation_config.json",
        r#"{"eos_token_id": [3, 4], "temperature": 0.5}"#,
    );
    put(
        "tokenizer_config.json",
        r#"{"add_bos_token": false, "chat_template": "{{ x }}"}"#,
    );
    let model = open(folder.path()).unwrap();
    let ends = [Meta::U64(3), Meta::U64(4)].into_iter().collect();
    assert_eq!(model.meta(keys::EOS_TOKEN_IDS), Some(&ends));
    assert_eq!(model.meta(keys::BOS_TOKEN_ID), Some(&Meta::U64(1)));
    assert_eq!(model.meta(keys::CHAT_TEMPLATE), Some(&"{{ x }}".into()));
    assert_eq!(model.meta("generation.temperature"), Some(&Meta::F64(0.5)));
    put("chat_template.jinja", "of its own");
    let model = open(folder.path()).unwrap();
    assert_eq!(model.meta(keys::CHAT_TEMPLATE), Some(&"of its own".into()));
    assert_eq!(
        model.tensor("token_embd.weight").unwrap().format,
        Format::F32
    );
}
