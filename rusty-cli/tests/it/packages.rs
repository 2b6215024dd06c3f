//! Packages of kernels, made with no device at hand.

use crate::command::{command, failure, golden, json, said, stdout};
use crate::gpus::{folder, has_llvmpipe, logits};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn compiled(target: &str, name: &str, more: &[&str]) -> (PathBuf, Vec<Value>) {
    let folder = folder(name);
    let out = folder.to_str().expect("UTF-8");
    let shape = [
        "--random",
        "qwen3-tiny",
        "--format",
        "q4_0",
        "--no-adapters",
    ];
    let to = ["compile", "--target", target, "--out", out];
    let said = stdout(&[&to[..], &shape[..], more].concat());
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
        let (folder, kernels) = compiled(target, &format!("package-{}", &target[..4]), &[]);
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
            let cuda = target.starts_with("cuda");
            // Elsewhere NVRTC may be missing: `cargo xtask setup` cannot install it.
            let compiles = cfg!(all(target_os = "linux", target_arch = "x86_64"));
            assert!(cuda || kernel["code"].is_null(), "{kernel}");
            assert!(!cuda || !compiles || kernel["code"].is_string(), "{kernel}");
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

/// What is said where a model runs on the Vulkan device.
fn bench(cache: &Path, more: &[&str]) -> String {
    let model = ["bench", "--random", "qwen3-tiny", "--format", "q4_0"];
    let sizes = ["--device", "vulkan", "-p", "8", "-n", "2", "-r", "1"];
    let arguments = [&model[..], &sizes[..], more].concat();
    said(command(&arguments).env("RUSTY_CACHE", cache)).1
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
    let cache = folder("package-cache");
    for target in ["llvmpipe", "vulkan"] {
        let (package, _) = compiled(target, &format!("package-on-{target}"), &[]);
        let warnings = bench(&cache, &["--kernels", package.to_str().expect("UTF-8")]);
        assert!(!warnings.contains("package"), "{warnings}");
        assert_eq!(texts(&cache), 0, "{target}");
    }
    let warnings = bench(&cache, &[]);
    assert!(!warnings.contains("package"), "{warnings}");
    assert!(texts(&cache) > 10);
}

/// A package whose kernels round no inputs serves whoever wants none rounded, and whoever does not mind; one whose kernels may round some
/// is said not to serve the former.
#[test]
fn packages_are_for_a_precision() {
    if !has_llvmpipe() {
        return;
    }
    let cache = folder("package-precision-cache");
    let (single, _) = compiled("llvmpipe", "package-single", &["--single-precision"]);
    let single = single.to_str().expect("UTF-8");
    for options in [&["--single-precision"][..], &[]] {
        let warnings = bench(&cache, &[options, &["--kernels", single]].concat());
        assert!(!warnings.contains("package"), "{warnings}");
        assert_eq!(texts(&cache), 0, "{options:?}");
    }
    let (rounding, _) = compiled("llvmpipe", "package-rounding", &[]);
    let rounding = rounding.to_str().expect("UTF-8");
    let warnings = bench(&cache, &["--single-precision", "--kernels", rounding]);
    assert!(
        warnings.contains("half-precision arithmetic")
            && warnings.contains("rusty compile --single-precision"),
        "{warnings}"
    );
    assert!(texts(&cache) > 10);
}

/// Kernels planned for what GPUs of an API have (no halves here) give what those give that are planned for the device at hand, and none
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
    let (want, _) = logits(&model, &own_cache, &[], "warn");
    let close = |have: &[f32]| {
        assert_eq!(have.len(), want.len());
        let apart = have.iter().zip(&want).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 1e-3, "{apart}");
    };
    let (have, warnings) = logits(&model, &cache, &["--kernels", path], "warn");
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
    let planes = changed(&|m| m["target"]["plane_size"] = 32.into());
    let (have, warnings) = logits(&model, &cache, &["--kernels", &planes], "warn");
    close(&have);
    assert!(warnings.contains("lacks planes of 32 units"), "{warnings}");
    assert_eq!(texts(&cache), texts(&own_cache));
    let build = changed(&|m| m["rusty"] = "0".into());
    let (have, warnings) = logits(&model, &cache, &["--kernels", &build], "warn");
    close(&have);
    assert!(warnings.contains("another build"), "{warnings}");
    assert_eq!(texts(&cache), texts(&own_cache));
    // Earlier versions told the target's name alone.
    let old = changed(&|m| m["target"] = "vulkan".into());
    let (_, error) = failure(&["run", "Hi", "--kernels", &old]);
    assert!(error.contains("another version"), "{error}");
}

/// Another package takes the place of an earlier one, and of what a run that was cut off left; anything else is somebody's.
#[test]
fn packages_are_written_whole() {
    let (package, _) = compiled("vulkan", "package-replaced", &[]);
    let path = package.to_str().expect("UTF-8");
    let shape = ["--random", "qwen3-tiny", "--format", "q4_0"];
    let words = ["compile", "--target", "webgpu", "--out", path];
    let words = [&words[..], &shape[..], &["--no-adapters"]].concat();
    let leave_unfinished = || {
        let unfinished = package.join("unfinished-package");
        fs::create_dir_all(&unfinished).expect("a folder");
        fs::write(unfinished.join("half"), "fn ").expect("written");
    };
    let check = || {
        stdout(&words);
        let manifest = fs::read(package.join("manifest.json")).expect("a manifest");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let kernels = manifest["kernels"].as_array().expect("kernels").iter();
        let files = kernels.map(|kernel| kernel["text"].as_str().expect("a file").to_string());
        let files: BTreeSet<String> = files.chain(["manifest.json".into()]).collect();
        let there = fs::read_dir(&package).expect("a folder");
        let there = there.map(|entry| entry.expect("an entry").file_name());
        let there = there.map(|name| name.into_string().expect("UTF-8"));
        assert_eq!(there.collect::<BTreeSet<_>>(), files);
    };
    leave_unfinished();
    check();
    fs::remove_dir_all(&package).expect("removed");
    leave_unfinished();
    check();
    // Cut off while kernels were moved to their place.
    let there = fs::read_dir(&package).expect("a folder");
    let there: Vec<_> = there.map(|entry| entry.expect("an entry").path()).collect();
    leave_unfinished();
    for file in &there {
        let name = file.file_name().expect("a name");
        let part = package.join("unfinished-package").join(name);
        if there.iter().position(|path| path == file) > Some(2) || name == "manifest.json" {
            fs::rename(file, part).expect("moved");
        }
    }
    check();
    fs::remove_file(package.join("manifest.json")).expect("removed");
    let (_, error) = failure(&words);
    assert!(error.contains("holds other things"), "{error}");
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
