//! Contexts stretched by `--rope-scaling`.

use crate::command::{command, failure, golden, json, said, stdout};
use serde_json::{Value, json};
use std::path::Path;

/// A copy of a model of the goldens with another configuration.
fn changed(model: &str, to: &Path, change: impl FnOnce(&mut Value)) -> String {
    for entry in std::fs::read_dir(golden(&format!("models/{model}"))).expect(model) {
        let entry = entry.expect(model);
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
    let path = to.join("config.json");
    let mut config = serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("JSON");
    change(&mut config);
    std::fs::write(&path, config.to_string()).expect("written");
    to.display().to_string()
}

/// The file that `rusty logits` writes for some tokens.
fn logits(model: &str, tokens: u32, words: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().join("logits.safetensors");
    let tokens: Vec<String> = (0..tokens)
        .map(|i| (i * 37 % 250 + 1).to_string())
        .collect();
    let tokens = tokens.join(",");
    let out = out.display().to_string();
    let fixed = ["logits", model, "--tokens", &tokens, "--out", &out];
    stdout(&[&fixed[..], &["--device", "cpu"], words].concat());
    std::fs::read(out).expect("written")
}

/// A model whose file states a scaling, and the same without it, run with the flag.
#[test]
fn the_flag_says_what_a_file_would() {
    // As many tokens as the scaling shows at.
    for (model, kind, tokens) in [
        ("llama-linear", "linear", 30),
        ("llama-dynamic", "ntk", 60),
        ("qwen3-yarn", "yarn", 60),
        ("llama-llama3rope-sharded", "llama3", 60),
    ] {
        let folder = tempfile::tempdir().expect("folder");
        let mut factor = String::new();
        let plain = changed(model, folder.path(), |config| {
            let own = config["rope_parameters"].clone();
            factor = own["factor"].to_string();
            if let Some(original) = own["original_max_position_embeddings"].as_u64() {
                config["max_position_embeddings"] = original.into();
            }
            config["rope_parameters"] =
                json!({"rope_theta": own["rope_theta"], "rope_type": "default"});
        });
        let stated = logits(&golden(&format!("models/{model}")), tokens, &[]);
        let words = ["--rope-scaling", kind, "--rope-factor", &factor];
        assert_eq!(logits(&plain, tokens, &words), stated, "{model}");
        let other = ["--rope-scaling", kind, "--rope-factor", "3"];
        assert_ne!(logits(&plain, tokens, &other), stated, "{model}");
    }
}

#[test]
fn the_context_grows_with_the_factor() {
    let model = golden("gguf/qwen3-float/F32.gguf");
    let facts = |words: &[&str]| json(&[&["inspect", &model, "--json"], words].concat());
    let own = facts(&[])["context"].as_u64().expect("tokens");
    let linear = facts(&["--rope-scaling", "linear", "--rope-factor", "4"]);
    assert_eq!(linear["context"], 4 * own);
    assert_eq!(linear["rope_scaling"], json!(["linear, 4 times"]));
    let preset = facts(&["--rope-scaling", "yarn-128k"]);
    assert_eq!(preset["context"], 131072);
    assert_eq!(
        preset["rope_scaling"],
        json!(["yarn, 4 times 32768 tokens"])
    );
    let none = facts(&["--rope-scaling", "none"]);
    assert_eq!(none["rope_scaling"], json!(["none"]));
}

/// Refused by name, unless a fallback is named.
#[test]
fn unknown_kinds_need_a_fallback() {
    let folder = tempfile::tempdir().expect("folder");
    let model = changed("llama-linear", folder.path(), |config| {
        config["rope_parameters"]["rope_type"] = "spiral".into();
    });
    let (_, error) = failure(&["inspect", &model]);
    assert!(
        error.contains("spiral") && error.contains("--rope-scaling"),
        "{error}"
    );
    let stated = logits(&golden("models/llama-linear"), 30, &[]);
    assert_eq!(logits(&model, 30, &["--rope-scaling", "linear"]), stated);
}

#[test]
fn yarn_without_its_parameters_becomes_ntk() {
    let folder = tempfile::tempdir().expect("folder");
    let model = changed("qwen3-yarn", folder.path(), |config| {
        let own = config["rope_parameters"].as_object_mut().expect("object");
        own.remove("original_max_position_embeddings");
    });
    let (facts, warning) = said(&mut command(&["inspect", &model]));
    assert!(facts.contains("ntk"), "{facts}");
    assert!(warning.contains("dynamic NTK"), "{warning}");
}

#[test]
fn what_a_kind_lacks_is_named() {
    let model = golden("models/llama-mha-f16");
    for (words, missing) in [
        (&["--rope-scaling", "linear"][..], "--rope-factor"),
        (&["--rope-scaling", "longrope"], "made for longrope"),
        (
            &["--rope-scaling", "ntk", "--rope-factor", "0"],
            "'ntk' by 0",
        ),
        (&["--rope-scaling", "ntk"], "'ntk' without a factor"),
        (
            &["--rope-scaling", "linear", "--rope-factor", "1e30"],
            "--rope-factor",
        ),
    ] {
        let (code, error) = failure(&[&["inspect", &model][..], words].concat());
        assert!(code == 1 && error.contains(missing), "{words:?}: {error}");
    }
    let (code, error) = failure(&["inspect", &model, "--rope-factor", "2"]);
    assert!(code == 2 && error.contains("--rope-scaling"), "{error}");
}
