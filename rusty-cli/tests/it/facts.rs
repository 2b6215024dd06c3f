//! What commands tell: tokens, plans, devices, speeds.

use crate::command::{command, golden, json, stdout};
use rusty_loader::Format;
use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::meta::keys;
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

#[test]
fn tokenize_takes_models_tokenizers_and_vocabularies() {
    assert_eq!(
        json(&["tokenize", "Hello!", "--json"])["ids"],
        serde_json::json!([876, 3])
    );
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/model.gguf");
    for text in ["-5 --nonesuch", "--nonesuch", "- a", ""] {
        let alone = json(&["tokenize", text, "--json"]);
        assert_eq!(alone, json(&["tokenize", model, text, "--json"]), "{text}");
        assert_eq!(
            alone["ids"].as_array().expect("ids").is_empty(),
            text.is_empty()
        );
    }
    for entry in std::fs::read_dir(golden("tokenizers")).expect("tokenizers") {
        let folder = entry.expect("entry").path();
        let Ok(cases) = std::fs::read(folder.join("cases.json")) else {
            continue;
        };
        let cases: Value = serde_json::from_slice(&cases).expect("json");
        let plain = |t: &str| !t.contains('\0');
        let case = cases["encode"]
            .as_array()
            .expect("encode")
            .iter()
            .find(|c| c["text"].as_str().is_some_and(plain) && c["ids_llamacpp"].is_null());
        let case = case.expect("a case");
        let text = case["text"].as_str().expect("text");
        for model in [folder.clone(), folder.join("vocab.gguf")] {
            if !model.exists() {
                continue;
            }
            let ids = &json(&["tokenize", model.to_str().expect("path"), text, "--json"])["ids"];
            assert_eq!(ids, &case["ids"], "{model:?} {text:?}");
        }
    }
}

#[test]
fn explain_counts_dispatches() {
    let object = json(&["explain", "--json"]);
    let per_token = object["dispatches_per_token"].as_u64().expect("dispatches");
    let layers = object["layers"].as_u64().expect("layers");
    assert!(
        per_token <= 7 * layers + 5,
        "{per_token} for {layers} layers"
    );
    assert!(
        object["nodes"]
            .as_u64()
            .is_some_and(|n| n > 20 * layers / 2)
    );
    assert!(
        object["bytes_per_token"]
            .as_u64()
            .is_some_and(|b| b > 5 << 20)
    );
    assert!(object["kernels"].as_array().is_some_and(|k| !k.is_empty()));
    let on = |target: &str| {
        let shape = ["--random", "qwen3-tiny", "--format", "bf16"];
        json(&[&["explain", "--json", "--target", target], &shape[..]].concat())
    };
    let object = on("h200");
    let number = |key: &str| object[key].as_f64().expect(key);
    let seconds = number("bytes_per_token") / 4.3e12 + number("dispatches_per_token") * 3.7e-6;
    assert!((number("predicted_tokens_per_second") * seconds - 1.0).abs() < 1e-6);
    assert_eq!(number("dispatches_per_token"), 13.0);
    assert_eq!(number("dispatches_with_adapters"), 13.0);
    // Four projections a layer, and the head, where cubes cannot wait for each other.
    let object = on("metal");
    let number = |key: &str| object[key].as_f64().expect(key);
    let more = number("dispatches_with_adapters") - number("dispatches_per_token");
    assert_eq!(more, 4.0 * number("layers") + 1.0);
    assert!(on("llvmpipe")["predicted_tokens_per_second"].is_null());
    let text = stdout(&["explain", "--target", "h200"]);
    assert!(text.contains("prediction, not measured"), "{text}");
    for part in ["== graph", "matmul", "gemv_bytes"] {
        assert!(text.contains(part), "{part} is missing");
    }
}

#[test]
fn inspect_and_devices_tell_facts() {
    let object = json(&["inspect", "--json", "--tensors"]);
    assert_eq!(object["arch"], "qwen3");
    assert_eq!(object["layers"], 6);
    assert!(object["tensors"].as_array().is_some_and(|t| t.len() > 60));
    assert!(stdout(&["inspect"]).contains("architecture  qwen3"));
    let devices = json(&["devices", "--json"]);
    let devices = devices.as_array().expect("list");
    assert!(
        devices
            .iter()
            .any(|d| d["choice"] == "cpu" && d["absent"].is_null())
    );
    assert!(
        devices
            .iter()
            .all(|d| d["absent"].is_null() || d["absent"].as_str().is_some_and(|r| r.len() > 5))
    );
}

/// A Llama in Q4_0 whose data is a hole in the file: 8.5 GB for each layer.
#[cfg(target_os = "linux")]
fn sparse_model(path: &Path, layers: usize) {
    let (width, inner, kv, vocab) = (32_768, 131_072, 1024, 32_000);
    let mut writer = GgufWriter::new("llama");
    for (key, size) in [
        (keys::BLOCK_COUNT, layers),
        (keys::CONTEXT_LENGTH, 4096),
        (keys::EMBEDDING_LENGTH, width),
        (keys::FEED_FORWARD_LENGTH, inner),
        (keys::HEAD_COUNT, 256),
        (keys::HEAD_COUNT_KV, 8),
        (keys::VOCAB_SIZE, vocab),
    ] {
        writer.meta(&format!("llama.{key}"), size as u64);
    }
    writer.meta(&format!("llama.{}", keys::RMS_EPSILON), 1e-5);
    let blocks = Format::by_name("q4_0").expect("a format");
    let mut matrix = |name: String, rows, row| {
        writer.tensor(&name, blocks, &[rows, row]);
    };
    for name in ["token_embd.weight", "output.weight"] {
        matrix(name.into(), vocab, width);
    }
    for layer in 0..layers {
        let mut matrix =
            |role: &str, rows, row| matrix(format!("blk.{layer}.{role}.weight"), rows, row);
        for role in ["attn_q", "attn_output"] {
            matrix(role, width, width);
        }
        for role in ["attn_k", "attn_v"] {
            matrix(role, kv, width);
        }
        for role in ["ffn_gate", "ffn_up"] {
            matrix(role, inner, width);
        }
        matrix("ffn_down", width, inner);
    }
    let mut norm = |name: String| {
        writer.tensor(&name, Format::F32, &[width]);
    };
    norm("output_norm.weight".into());
    for layer in 0..layers {
        norm(format!("blk.{layer}.attn_norm.weight"));
        norm(format!("blk.{layer}.ffn_norm.weight"));
    }
    let mut file = File::create(path).expect("a file");
    let header = writer.header();
    file.write_all(&header).expect("written");
    file.set_len(header.len() as u64 + writer.data_len())
        .expect("a hole");
}

/// Where files may have holes of any size.
#[cfg(target_os = "linux")]
#[test]
fn inspect_tells_of_models_larger_than_any_memory() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("large.gguf");
    sparse_model(&path, 64);
    let path = path.to_str().expect("UTF-8");
    assert!(stdout(&["inspect", path]).contains("does not fit"));
    let facts = json(&["inspect", path, "--json"]);
    assert_eq!(facts["fits"], false);
    assert!(
        facts["held_weight_bytes"].as_u64() > Some(500 << 30),
        "{facts}"
    );
}

#[test]
fn bench_prints_the_documented_array() {
    let rows = json(&[
        "bench", "-p", "32", "-n", "8", "-t", "2", "-r", "2", "--device", "cpu", "--output", "json",
    ]);
    let rows = rows.as_array().expect("array");
    let tests: Vec<_> = rows
        .iter()
        .map(|r| r["test"].as_str().expect("test"))
        .collect();
    assert_eq!(tests, ["pp32", "tg8"]);
    for row in rows {
        assert!(row["avg_ts"].as_f64().is_some_and(|s| s > 0.0));
        assert!(
            row["stddev_ts"].is_number() && row["device"].is_string() && row["model"].is_string()
        );
        assert_eq!(row["format"], "q8_0");
        // A CPU reads weights where they are.
        assert!(row.get("upload_gb_s").is_some_and(|rate| rate.is_null()));
    }
    let random = ["--random", "qwen3-tiny", "--format", "q4_0"];
    let many = [
        "--batch",
        "3",
        "--adapters",
        "2",
        "--adapter-rank",
        "4",
        "-d",
        "16",
    ];
    let text = stdout(
        &[
            &["bench", "-p", "8", "-n", "4", "-r", "1"][..],
            &random,
            &many,
        ]
        .concat(),
    );
    assert!(text.contains("tok/s"), "{text}");
}

/// Speeds, choices, warnings and errors are said to nobody: commands end as ever.
#[test]
fn a_stderr_that_cannot_be_written_changes_nothing() {
    for (arguments, code) in [
        ("run Hi -n 2 --experts demo -v", 0),
        ("bench --random qwen3-tiny -p 8 -n 0 -r 1", 0),
        ("run Hi --adapter nonesuch", 1),
        ("run Hi --threads much", 2),
    ] {
        let words: Vec<&str> = arguments.split(' ').collect();
        let mut command = command(&[&words[..], &["--device", "cpu"]].concat());
        command.env("RUST_LOG", "info").stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("starts");
        drop(child.stderr.take());
        let status = child.wait().expect("ends");
        assert_eq!(status.code(), Some(code), "{arguments}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let mut child = command(&["explain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    let errors = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(
        output.status.success() && !errors.contains("panicked"),
        "{errors}"
    );
}
