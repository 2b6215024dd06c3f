//! Packages of kernels, made with no device at hand.

use crate::answers::floats;
use crate::command::{command, failure, golden, json, said, stdout};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("removed");
    }
    folder
}

fn compiled(target: &str, name: &str) -> (PathBuf, Vec<Value>) {
    let folder = folder(name);
    let out = folder.to_str().expect("UTF-8");
    let shape = [
        "--random",
        "qwen3-tiny",
        "--format",
        "q4_0",
        "--no-adapters",
    ];
    let said = stdout(&[&["compile", "--target", target, "--out", out], &shape[..]].concat());
    let manifest = fs::read(folder.join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let kernels = manifest["kernels"].as_array().expect("kernels").clone();
    assert!(
        said.contains(&format!("{} kernels", kernels.len())),
        "{said}"
    );
    (folder, kernels)
}

#[test]
fn packages_hold_every_kernel() {
    for (target, ending, entry) in [
        ("cuda:sm_90", "cu", "rusty_matrix"),
        ("vulkan", "wgsl", "rusty_gemm"),
        ("metal", "wgsl", "rusty_gemm"),
        ("dx12", "wgsl", "rusty_gemm"),
        ("webgpu", "wgsl", "rusty_gemm"),
    ] {
        let (folder, kernels) = compiled(target, &format!("package-{}", &target[..4]));
        assert!(kernels.len() > 10, "{target}: {}", kernels.len());
        assert!(
            kernels.iter().any(|k| k["entry"] == entry),
            "{target}: no {entry}"
        );
        for kernel in &kernels {
            let name = kernel["text"].as_str().expect("a file");
            assert!(name.ends_with(ending), "{name}");
            let text = fs::read_to_string(folder.join(name)).expect("a text");
            assert!(text.contains(kernel["entry"].as_str().expect("an entry")));
            let compiles = target.starts_with("cuda") && std::env::var_os("RUSTY_NVRTC").is_some();
            assert_eq!(kernel["code"].is_string(), compiles, "{kernel}");
            if let Some(code) = kernel["code"].as_str() {
                assert!(
                    fs::read(folder.join(code))
                        .expect("code")
                        .starts_with(b"\x7fELF")
                );
            }
        }
        // A package is no hindrance where nothing of it is needed.
        let package = folder.to_str().expect("UTF-8");
        let options = ["--device", "cpu", "--max-tokens", "2", "--json"];
        let answer = json(&[&["run", "Hi", "--kernels", package], &options[..]].concat());
        assert!(answer["text"].is_string(), "{answer}");
    }
}

/// Whether packages' kernels can run here.
fn has_llvmpipe() -> bool {
    let has = stdout(&["devices"]).contains("llvmpipe");
    if !has {
        println!("packages are loaded on llvmpipe here, which this machine does not have");
    }
    has
}

/// Texts that were made with a cache of its own.
fn texts(cache: &Path) -> usize {
    fs::read_dir(cache.join("texts")).map_or(0, Iterator::count)
}

/// Of a package's kernels no text is made, nor kept, where it is used: not the device's own, nor one for what GPUs of its API have.
#[test]
fn packages_are_loaded() {
    if !has_llvmpipe() {
        return;
    }
    let bench = [
        "bench",
        "--random",
        "qwen3-tiny",
        "--format",
        "q4_0",
        "--device",
        "vulkan",
    ];
    let sizes = ["-p", "8", "-n", "2", "-r", "1"];
    let cache = folder("package-cache");
    let texts_after = |kernels: &[&str]| {
        let arguments = [&bench[..], &sizes[..], kernels].concat();
        let (_, warnings) = said(command(&arguments).env("RUSTY_CACHE", &cache));
        assert!(!warnings.contains("package"), "{warnings}");
        texts(&cache)
    };
    for target in ["llvmpipe", "vulkan"] {
        let (package, _) = compiled(target, &format!("package-on-{target}"));
        let package = package.to_str().expect("UTF-8");
        assert_eq!(texts_after(&["--kernels", package]), 0, "{target}");
    }
    assert!(texts_after(&[]) > 10);
}

/// Logits of a model on the Vulkan device, and warnings.
fn logits(model: &str, cache: &Path, kernels: &[&str]) -> (Vec<f32>, String) {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().join("logits.safetensors");
    let path = out.to_str().expect("UTF-8");
    let tokens = "5,9,40,3,77,21,8,60,12,33";
    let words = ["logits", model, "--tokens", tokens, "--out", path];
    // Where keys are not rounded, neither are differences.
    let options = ["--device", "vulkan", "--kv", "f32"];
    let arguments = [&words[..], &options[..], kernels].concat();
    let (_, warnings) = said(command(&arguments).env("RUSTY_CACHE", cache));
    let written = fs::read(&out).expect("written");
    let written = SafeTensors::deserialize(&written).expect("safetensors");
    let logits = floats(written.tensor("logits").expect("logits").data());
    (logits, warnings)
}

/// Kernels planned for what GPUs of an API have (no planes here) give what those give that are planned for the device at hand, and none
/// is made. Where the device lacks something that they may need, or another build made them, that is said, and kernels are made.
#[test]
fn packages_for_other_facts_serve_or_are_said_not_to() {
    if !has_llvmpipe() {
        return;
    }
    let model = golden("models/qwen3-tied");
    let package = folder("package-for-others");
    let path = package.to_str().expect("UTF-8");
    let made = ["--target", "vulkan", "--kv", "f32", "--out", path];
    stdout(&[&["compile", &model], &made[..]].concat());
    let (own_cache, cache) = (folder("cache-of-its-own"), folder("cache-of-others"));
    let (want, _) = logits(&model, &own_cache, &[]);
    let close = |have: &[f32]| {
        assert_eq!(have.len(), want.len());
        let apart = have.iter().zip(&want).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 1e-3, "{apart}");
    };
    let (have, warnings) = logits(&model, &cache, &["--kernels", path]);
    close(&have);
    assert!(!warnings.contains("package"), "{warnings}");
    assert_eq!(texts(&cache), 0);
    let manifest = fs::read(package.join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut manifest = manifest.clone();
        manifest["kernels"] = json!([]);
        change(&mut manifest);
        let folder = folder("package-changed");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("manifest.json"), manifest.to_string()).expect("written");
        folder.to_str().expect("UTF-8").to_string()
    };
    let planes = changed(&|m| m["target"]["plane_ops"] = true.into());
    let (have, warnings) = logits(&model, &cache, &["--kernels", &planes]);
    close(&have);
    assert!(warnings.contains("lacks planes of 32 units"), "{warnings}");
    assert_eq!(texts(&cache), texts(&own_cache));
    let build = changed(&|m| m["rusty"] = "0".into());
    let (have, warnings) = logits(&model, &cache, &["--kernels", &build]);
    close(&have);
    assert!(warnings.contains("another build"), "{warnings}");
    assert_eq!(texts(&cache), texts(&own_cache));
    // Earlier versions told the target's name alone.
    let old = changed(&|m| m["target"] = "vulkan".into());
    let (_, error) = failure(&["run", "Hi", "--kernels", &old]);
    assert!(error.contains("another version"), "{error}");
}

#[test]
fn what_cannot_be_compiled_is_said() {
    let (_, text) = failure(&["compile", "--target", "avx2", "--out", "never"]);
    assert!(text.contains("nothing to compile"), "{text}");
    let (_, text) = failure(&["compile", "--target", "toaster", "--out", "never"]);
    assert!(
        text.contains("rtx4090") && text.contains("cuda:sm_NN"),
        "{text}"
    );
    let (_, text) = failure(&["compile", "--target", "cuda:sm_35", "--out", "never"]);
    assert!(text.contains("sm_70"), "{text}");
    let (_, text) = failure(&["run", "Hi", "--kernels", "nowhere"]);
    assert!(text.contains("manifest.json"), "{text}");
}
