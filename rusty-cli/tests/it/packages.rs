//! Packages of kernels, made with no device at hand.

use crate::command::{command, failure, json, said, stdout};
use serde_json::Value;
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

/// Of a package's kernels no text is made, nor kept, where it is used.
#[test]
fn packages_are_loaded() {
    if !stdout(&["devices"]).contains("llvmpipe") {
        println!("packages are made for llvmpipe here, which this machine does not have");
        return;
    }
    let (package, _) = compiled("llvmpipe", "package-llvmpipe");
    let cache = folder("package-cache");
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
    let texts_after = |kernels: &[&str]| {
        let arguments = [&bench[..], &sizes[..], kernels].concat();
        said(command(&arguments).env("RUSTY_CACHE", &cache));
        fs::read_dir(cache.join("texts")).map_or(0, Iterator::count)
    };
    let package = package.to_str().expect("UTF-8");
    assert_eq!(texts_after(&["--kernels", package]), 0);
    assert!(texts_after(&[]) > 10);
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
