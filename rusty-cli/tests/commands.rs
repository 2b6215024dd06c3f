//! The commands as a user runs them: arguments in, text, JSON, files and exit codes out.

use safetensors::SafeTensors;
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const QUESTION: &str = "Find users older than 30";
const PROSE: &str = "You could look through the users and keep those older than 30.";
const SQL: &str = "SELECT * FROM users WHERE age > 30;";

fn golden(path: &str) -> String {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens"));
    root.join(path).to_str().expect("path").into()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rusty"));
    command
        .args(arguments)
        .env("RUST_LOG", "warn")
        .env("RUST_BACKTRACE", "0")
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

fn output(arguments: &[&str]) -> Output {
    command(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("starts")
}

/// Standard output of a command that must succeed.
fn stdout(arguments: &[&str]) -> String {
    let output = output(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(arguments)).expect("JSON")
}

/// Exit code and message of a command that must fail.
fn failure(arguments: &[&str]) -> (i32, String) {
    let output = output(arguments);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(!errors.contains("panicked"), "{errors}");
    (output.status.code().expect("a code"), errors)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let values = bytes.as_chunks::<4>().0;
    values.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn with_input(arguments: &[&str], input: &str) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(input.as_bytes()).expect("input");
    drop(stdin);
    child.wait_with_output().expect("ends")
}

#[test]
fn run_answers_with_and_without_adapters() {
    let cpu = ["--device", "cpu"];
    let plain = output(&["run", QUESTION, cpu[0], cpu[1]]);
    assert_eq!(String::from_utf8_lossy(&plain.stdout), format!("{PROSE}\n"));
    let speeds = String::from_utf8_lossy(&plain.stderr).to_string();
    assert!(
        speeds.contains("15 prompt tokens at") && speeds.contains("15 generated at"),
        "{speeds}"
    );
    assert_eq!(
        stdout(&["run", "-p", QUESTION, "--adapter", "sql", "--check"]),
        format!("{SQL}\n")
    );
    assert_eq!(
        stdout(&["run", QUESTION, "--adapter", "sql=0", cpu[0], cpu[1]]),
        format!("{PROSE}\n")
    );
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/adapters/sql");
    assert_eq!(
        stdout(&["run", QUESTION, "--adapter", folder, cpu[0], cpu[1]]),
        format!("{SQL}\n")
    );
    let piped = with_input(&["run", cpu[0], cpu[1]], &format!("{QUESTION}\n"));
    assert_eq!(String::from_utf8_lossy(&piped.stdout), format!("{PROSE}\n"));
}

#[test]
fn run_as_json_has_the_documented_fields() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/model.gguf");
    let object = json(&[
        "run", "-m", model, "-p", QUESTION, "-n", "5", "--temp", "0", "--json",
    ]);
    assert_eq!(
        object["tokens"],
        serde_json::json!([312, 375, 380, 413, 269])
    );
    assert_eq!(object["text"], "You could look through the");
    assert_eq!(object["prompt_tokens"], 15);
    assert_eq!(object["finish"], "length");
    for key in ["prefill_tok_s", "decode_tok_s", "load_s", "ttft_s"] {
        assert!(
            object["timings"][key].as_f64().is_some_and(|s| s > 0.0),
            "{key}: {object}"
        );
    }
    let stopped = json(&["run", "-p", QUESTION, "--stop", "older", "--json"]);
    assert_eq!(
        (&stopped["finish"], &stopped["text"]),
        (
            &"stop".into(),
            &"You could look through the users and keep those ".into()
        )
    );
}

#[test]
fn chat_remembers_and_forgets() {
    let input = "My name is Anna.\nWhat is my name?\n/clear\nWhat is my name?\n/exit\n";
    let output = with_input(&["chat", "--device", "cpu"], input);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[1].contains("Anna") && !lines[2].contains("Anna"),
        "{text}"
    );
}

#[test]
fn chat_goes_on_after_a_turn_that_cannot_be_answered() {
    let long = "many words ".repeat(200);
    let input = format!("{long}\nWho are you?\n");
    let output = with_input(&["chat", "--device", "cpu", "--ctx", "128"], &input);
    let errors = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(errors.contains("do not fit the context of 128"), "{errors}");
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn experts_answer_what_they_are_for() {
    let input = "What is the capital of France?\nFind users older than 30\nExplain what SQL is\n";
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/experts");
    for experts in ["demo", folder] {
        let words = ["chat", "--experts", experts, "--verbose", "--device", "cpu"];
        let output = with_input(&words, input);
        let errors = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{errors}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["The capital of France is Paris.", SQL]);
        assert!(lines.len() == 3 && !lines[2].contains("SELECT"), "{text}");
        let choices: Vec<&str> = errors
            .lines()
            .filter(|l| l.starts_with("expert: "))
            .collect();
        let found = "expert: sql (score 1.50: the message has find, users, older than)";
        assert!(choices.len() == 3 && choices[1] == found, "{errors}");
        assert!(
            choices[0].starts_with("expert: base (score 0.00: "),
            "{errors}"
        );
        assert!(
            choices[2].starts_with("expert: base (score 0.50: "),
            "{errors}"
        );
    }
    let output = output(&["run", QUESTION, "--experts", "demo"]);
    assert_eq!(output.stdout, format!("{SQL}\n").as_bytes());
    assert!(!String::from_utf8_lossy(&output.stderr).contains("expert: "));
    let routed = [
        "--experts",
        "demo",
        "--router",
        "embedding",
        "--device",
        "cpu",
    ];
    let text = stdout(&[&["run", QUESTION][..], &routed].concat());
    assert_eq!(text, format!("{SQL}\n"));
    let text = stdout(&[&["run", "What is the capital of France?"][..], &routed].concat());
    assert_eq!(text, "The capital of France is Paris.\n");
}

#[test]
fn logits_are_written_as_safetensors() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().join("logits.safetensors");
    let model = golden("models/qwen3-tied");
    let expected =
        std::fs::read(golden("models/qwen3-tied/expected.safetensors")).expect("expected");
    let expected = SafeTensors::deserialize(&expected).expect("safetensors");
    let ids = expected
        .tensor("ids.0")
        .expect("ids")
        .data()
        .as_chunks::<8>()
        .0
        .to_vec();
    let ids: Vec<String> = ids
        .iter()
        .map(|b| i64::from_le_bytes(*b).to_string())
        .collect();
    let path = out.to_str().expect("path");
    stdout(&[
        "logits",
        &model,
        "--tokens",
        &ids.join(","),
        "--kv",
        "f32",
        "--out",
        path,
    ]);
    let written = std::fs::read(&out).expect("written");
    let written = SafeTensors::deserialize(&written).expect("safetensors");
    let (have, want) = (
        written.tensor("logits").expect("logits"),
        expected.tensor("logits.0").expect("logits"),
    );
    assert_eq!(have.shape(), want.shape());
    let apart = floats(have.data())
        .iter()
        .zip(floats(want.data()))
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart < 1e-3, "{apart}");
    let same = stdout(&[
        "logits",
        &model,
        "--tokens",
        &ids.join(","),
        "--adapter",
        &golden("adapters/qwen3-lora-all"),
        "--out",
        path,
    ]);
    assert_eq!(same, "");
}

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
    let text = stdout(&["explain", "--target", "h200"]);
    for part in ["== graph", "matmul", "gemv_plane"] {
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

#[test]
fn quantizing_at_load_stays_near_the_model() {
    let folder = tempfile::tempdir().expect("folder");
    let model = golden("models/llama-mha-f16");
    let logits = |extra: &[&str]| -> Vec<f32> {
        let out = folder.path().join("logits.safetensors");
        let path = out.to_str().expect("path");
        let base = [
            "logits",
            &model,
            "--tokens",
            "5,9,40,3,77,21",
            "--out",
            path,
        ];
        stdout(&[&base[..], extra].concat());
        let written = std::fs::read(&out).expect("written");
        let written = SafeTensors::deserialize(&written).expect("safetensors");
        floats(written.tensor("logits").expect("logits").data())
    };
    let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let whole = logits(&[]);
    let cosine =
        |other: &[f32]| dot(&whole, other) / (dot(&whole, &whole) * dot(other, other)).sqrt();
    let (int8, int4) = (
        cosine(&logits(&["--quantize", "int8"])),
        cosine(&logits(&["--quantize", "int4"])),
    );
    assert!(int8 > 0.999 && int8 < 1.0, "int8: {int8}");
    assert!(int4 > 0.9 && int4 < int8, "int4: {int4}");
}

#[test]
fn failures_name_the_cause_and_the_way_out() {
    let (code, text) = failure(&["run", "hi", "-m", "/nonesuch/model.gguf"]);
    assert!(
        code == 1 && text.contains("/nonesuch/model.gguf"),
        "{code} {text}"
    );
    let (code, text) = failure(&["run", "hi", "--device", "abacus"]);
    assert!(
        code == 1 && text.contains("abacus") && text.contains("vulkan"),
        "{code} {text}"
    );
    let (code, text) = failure(&["run", "hi", "--device", "metal"]);
    assert!(
        code == 1 && text.contains("available: cpu"),
        "{code} {text}"
    );
    let (code, text) = failure(&["run", "hi", "--adapter", "nonesuch"]);
    assert!(
        code == 1 && text.contains("nonesuch") && text.contains("sql"),
        "{code} {text}"
    );
    let (code, text) = failure(&["run", "hi", "--experts", "nonesuch"]);
    assert!(
        code == 1 && text.contains("nonesuch") && text.contains("'demo'"),
        "{code} {text}"
    );
    let (code, text) = failure(&["chat", "--experts", env!("CARGO_MANIFEST_DIR")]);
    assert!(
        code == 1 && text.contains("no folder in it has an expert.toml"),
        "{code} {text}"
    );
    for words in [
        &["run", "hi", "--experts", "demo", "--adapter", "sql"][..],
        &["chat", "--router", "embedding"],
    ] {
        let (code, text) = failure(words);
        assert!(code == 2 && text.contains("--experts"), "{code} {text}");
    }
    let (code, text) = failure(&["run", "hi", "--adapter", "sql=much"]);
    assert!(code == 1 && text.contains("much"), "{code} {text}");
    let (code, text) = failure(&["run", "hi", "--ctx", "900000000", "--device", "cpu"]);
    assert!(code == 1 && text.contains("out of memory"), "{code} {text}");
    for words in [
        &["run", "hi", "--ctx", "18446744073709551615"][..],
        &["bench", "-p", "900000000"],
    ] {
        let (code, text) = failure(&[words, &["--device", "cpu"]].concat());
        assert!(code == 1 && text.contains("out of memory"), "{code} {text}");
    }
    let (code, text) = failure(&["run", "hi", "--threads", "100000"]);
    assert!(code == 2 && text.contains("cores"), "{code} {text}");
    let (code, text) = failure(&["run", "hi", "--temp", "-1"]);
    assert!(code == 1 && text.contains("temperature"), "{code} {text}");
    let (code, text) = failure(&["run", "hi", "--adapter", "sql=1e38"]);
    assert!(code == 1 && text.contains("not finite"), "{code} {text}");
    let (code, text) = failure(&["run", "  "]);
    assert!(code == 1 && text.contains("no prompt"), "{code} {text}");
    let (code, text) = failure(&["tokenize", env!("CARGO_MANIFEST_DIR")]);
    assert!(code == 1 && text.contains("no text"), "{code} {text}");
    let (code, text) = failure(&["inspect", env!("CARGO_MANIFEST_DIR")]);
    assert!(
        code == 1 && text.contains("no model folder"),
        "{code} {text}"
    );
    let (code, text) = failure(&["bench", "--batch", "100000", "--device", "cpu"]);
    assert!(code == 1 && text.contains("sequences"), "{code} {text}");
    let (code, text) = failure(&["run"]);
    assert!(code == 1 && text.contains("no prompt"), "{code} {text}");
    let (code, text) = failure(&["logits", "--tokens", "99999", "--out", "/tmp/never"]);
    assert!(code == 1 && text.contains("99999"), "{code} {text}");
    let (code, text) = failure(&["explain", "--target", "toaster"]);
    assert!(code == 1 && text.contains("h200"), "{code} {text}");
    let (code, _) = failure(&["run", "--temp", "warm", "hi"]);
    assert_eq!(code, 2);
    let (code, _) = failure(&["frobnicate"]);
    assert_eq!(code, 2);
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
