//! What models say: `rusty run` and `logits`.

use crate::command::{command, failure, golden, json, output, stdout, with_input};
use safetensors::SafeTensors;
use serde_json::Value;
use std::fs::File;
use std::process::Output;

pub(crate) const QUESTION: &str = "Find users older than 30";
const PROSE: &str = "You could look through the users and keep those older than 30.";
pub(crate) const SQL: &str = "SELECT * FROM users WHERE age > 30;";

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let values = bytes.as_chunks::<4>().0;
    values.iter().map(|b| f32::from_le_bytes(*b)).collect()
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

/// Further ways to choose change answers, also where the most likely token is taken.
#[test]
fn what_was_said_is_not_said_again() {
    let ask = |more: &[&str]| {
        let words = ["run", "Say it again: again, again", "-n", "40", "--json"];
        let answer = json(&[&words[..], more].concat());
        let tokens = answer["tokens"].as_array().expect("tokens").clone();
        tokens
            .iter()
            .map(|t| t.as_u64().expect("an id"))
            .collect::<Vec<_>>()
    };
    let plain = ask(&[]);
    let distinct = |tokens: &[u64]| {
        tokens
            .iter()
            .collect::<std::collections::HashSet<_>>()
            .len()
    };
    let once = ask(&["--no-repeat-ngram", "1"]);
    assert!(distinct(&once) == once.len() && once != plain, "{once:?}");
    let drawn = ["--temp", "1", "--seed", "3"];
    let all = ask(&drawn);
    // Of the most likely tokens alone one is left.
    for likely in [["--top-n-sigma", "1e-3"], ["--epsilon-cutoff", "0.999"]] {
        let have = ask(&[&drawn[..], &likely].concat());
        assert!(have == plain && have != all, "{likely:?}: {have:?}");
    }
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

/// Ends of lines and blanks are part of what is said.
#[test]
fn a_raw_prompt_is_taken_as_it_is() {
    let words = ["run", "--raw", "--json", "-n", "1", "--device", "cpu"];
    let tokens = |output: Output| {
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        answer["prompt_tokens"].as_u64().expect("tokens")
    };
    let piped = |prompt: &str| tokens(with_input(&words, prompt));
    let given = |prompt: &str| tokens(output(&[&words[..], &["-p", prompt]].concat()));
    for prompt in ["Hello\n\n", " "] {
        assert_eq!(piped(prompt), given(prompt), "{prompt:?}");
    }
    assert!(piped("Hello\n\n") > piped("Hello"));
}

/// What is told of adapters begins behind the answer's line.
#[test]
fn an_answer_has_its_line_alone() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("said");
    let file = File::create(&path).expect("a file");
    let words = ["run", QUESTION, "--adapter", "sql", "-v", "--device", "cpu"];
    let mut command = command(&words);
    command
        .stdout(file.try_clone().expect("a file"))
        .stderr(file);
    assert!(command.status().expect("starts").success());
    let said = std::fs::read_to_string(path).expect("said");
    let begins = format!("{SQL}\nadapter: sql is in a slot (915 KiB)\n[");
    assert!(said.starts_with(&begins), "{said}");
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
        let found = "expert: sql (score 1.25: the message has find, users, older than)";
        assert!(choices.len() == 3 && choices[1] == found, "{errors}");
        assert!(
            choices[0].starts_with("expert: base (score 0.00: "),
            "{errors}"
        );
        assert!(errors.contains("adapter: sql is in a slot ("), "{errors}");
        assert!(
            choices[2].starts_with("expert: base (score 0.50: "),
            "{errors}"
        );
    }
    let nobody = tempfile::tempdir().expect("folder");
    let none = nobody.path().to_str().expect("UTF-8");
    let alone = with_input(&["chat", "--experts", none, "--device", "cpu"], input);
    let errors = String::from_utf8(alone.stderr).expect("UTF-8");
    assert!(alone.status.success(), "{errors}");
    assert!(
        errors.contains("no folder in it has an expert.toml"),
        "{errors}"
    );
    let text = String::from_utf8(alone.stdout).expect("UTF-8");
    assert!(
        text.starts_with("The capital of France is Paris.\n") && !text.contains("SELECT"),
        "{text}"
    );
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
    let object = json(&[&["run", QUESTION, "--json"][..], &routed].concat());
    assert_eq!(object["expert"], "sql");
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
    let again = [
        "logits",
        &model,
        "--tokens",
        &ids.join(","),
        "--adapter",
        &golden("adapters/qwen3-lora-all"),
        "--out",
        path,
    ];
    let (_, error) = failure(&again);
    assert!(error.contains("--force"), "{error}");
    assert_eq!(stdout(&[&again[..], &["--force"]].concat()), "");
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
            "--force",
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
