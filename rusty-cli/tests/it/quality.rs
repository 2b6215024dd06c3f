//! `rusty quantize` and `rusty perplexity` as a user runs them.

use crate::command::{failure, golden, stdout};
use serde_json::Value;
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn fewer_bits_are_farther_from_the_floats() {
    let folder = tempfile::tempdir().expect("folder");
    let floats = golden("gguf/qwen3-float/F32.gguf");
    let words = golden("../../README.md");
    let run = |options: &[&str]| -> Value {
        let fixed = ["perplexity", &floats, &words, "--json", "--device", "cpu"];
        let chunks = ["--chunk", "64", "--chunks", "3"];
        let all = [&fixed[..], &chunks, options].concat();
        serde_json::from_str(&stdout(&all)).expect("JSON")
    };
    let plain = run(&[]);
    let (ppl, error) = (&plain["perplexity"], &plain["error"]);
    assert!(
        ppl.as_f64() > Some(1.0) && error.as_f64() > Some(0.0),
        "{plain}"
    );
    assert_eq!(plain["tokens"], 3 * 31);
    // There is room for a soft prompt in front of a chunk.
    let soft = run(&["--adapter", &golden("adapters/qwen3-prompt")]);
    assert_eq!(soft["tokens"], plain["tokens"]);
    assert_ne!(soft["mean"], plain["mean"]);

    let mut last = -1.0;
    for format in ["f32", "q8_0", "q4_0"] {
        let out = folder.path().join(format);
        let said = stdout(&["quantize", &floats, text(&out), "--format", format]);
        assert!(said.contains(&format!(" {format}")), "{said}");
        let found = run(&["--kl-divergence", text(&out)]);
        assert_eq!(found["reference"]["mean"], plain["mean"]);
        let mean = found["divergence"]["mean"].as_f64().expect("a number");
        assert!(mean > last && mean < 1.0, "{format}: {mean} after {last}");
        last = mean;
        if format == "f32" {
            assert_eq!(mean, 0.0);
            assert_eq!(found["divergence"]["same_top"], 1.0);
            last = 0.0;
        }
    }
    // The same weights on another device: float sums only.
    let found = run(&["--kl-device", "vulkan"]);
    assert!(found["divergence"]["mean"].as_f64() < Some(1e-6), "{found}");

    // The fewer bits keys and values have, the further.
    let mut last = 0.0;
    for format in ["f16", "q8_0", "q4_0"] {
        let found = run(&["--kv", "f32", "--kl-kv", format]);
        let mean = found["divergence"]["mean"].as_f64().expect("a number");
        assert!(mean > last && mean < 0.5, "{format}: {mean} after {last}");
        last = mean;
    }
}

#[test]
fn mistakes_are_named() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().join("out.gguf");
    let floats = golden("gguf/qwen3-float/F32.gguf");
    let (_, errors) = failure(&["quantize", &floats, text(&out), "--format", "q4_z"]);
    assert!(
        errors.contains("q4_z") && errors.contains("q4_k_m"),
        "{errors}"
    );
    std::fs::write(&out, "mine").expect("written");
    let (_, errors) = failure(&["quantize", &floats, text(&out), "--format", "q8_0"]);
    assert!(errors.contains("--force"), "{errors}");
    assert_eq!(std::fs::read(&out).expect("kept"), b"mine");
    stdout(&[
        "quantize",
        &floats,
        text(&out),
        "--format",
        "q8_0",
        "--force",
    ]);
    let (_, errors) = failure(&[
        "quantize",
        text(&out),
        text(&out),
        "--format",
        "q4_0",
        "--force",
    ]);
    assert!(errors.contains("are read"), "{errors}");
    let kept = std::fs::read(&out).expect("kept");
    let words = ["logits", text(&out), "--tokens", "1", "--force", "--out"];
    let (_, errors) = failure(&[&words[..], &[text(&out)]].concat());
    assert!(errors.contains("are read"), "{errors}");
    assert!(std::fs::read(&out).expect("kept") == kept);
    // A folder with one GGUF is a model like any other, but for what is written into it.
    let logits = folder.path().join("logits");
    let words = ["logits", text(folder.path()), "--tokens", "1", "--out"];
    let words = [&words[..], &[text(&logits), "--device", "cpu"]].concat();
    stdout(&words);
    let (_, errors) = failure(&[&words[..], &["--force"]].concat());
    assert!(errors.contains("are read"), "{errors}");
    // Nor is what is read by way of a link, nor an adapter.
    #[cfg(unix)]
    {
        let elsewhere = tempfile::tempdir().expect("folder");
        let link = elsewhere.path().join("link");
        std::os::unix::fs::symlink(&out, &link).expect("linked");
        let words = ["logits", text(folder.path()), "--tokens", "1", "--force"];
        let (_, errors) = failure(&[&words[..], &["--out", text(&link)]].concat());
        assert!(errors.contains("are read"), "{errors}");
    }
    let adapter = folder.path().join("adapter");
    let words = ["adapter", "convert", "sql", text(&adapter)];
    stdout(&words);
    let tensors = adapter.join("adapter_model.safetensors");
    let words = ["logits", "--tokens", "1", "--adapter", text(&adapter)];
    let words = [&words[..], &["--force", "--out", text(&tensors)]].concat();
    let (_, errors) = failure(&words);
    assert!(errors.contains("are read"), "{errors}");
    let again = folder.path().join("again");
    let words = ["quantize", text(folder.path()), text(&again)];
    stdout(&[&words[..], &["--format", "q4_0"]].concat());
    let checkpoint = golden("models/qwen3-tied");
    let words = ["quantize", &checkpoint, text(&again), "--force"];
    let (_, errors) = failure(&[&words[..], &["--format", "q4_0"]].concat());
    assert!(errors.contains("holds safetensors"), "{errors}");
    let folder_itself = text(folder.path());
    let words = [&floats, folder_itself, "--format", "q8_0", "--force"];
    let (_, errors) = failure(&[&["quantize"][..], &words].concat());
    assert!(errors.contains("is a folder"), "{errors}");
    let short = folder.path().join("short.txt");
    std::fs::write(&short, "a few words").expect("written");
    let (_, errors) = failure(&["perplexity", &floats, text(&short), "--device", "cpu"]);
    assert!(errors.contains("chunks of"), "{errors}");
}
