//! Adapters and merging where the files store the model in another way than the graph states it: fused products, and a
//! text model inside one of several kinds of input.

use super::adapters::assert_close;
use super::gguf_twin::twin;
use super::{Tensors, golden, logits, open, tensors};
use rusty_adapters::merge::{Method, merge};
use rusty_adapters::{Container, Precision, export, load, random, random_with_head};
use rusty_graph::SiteId;
use rusty_loader::gguf::Gguf;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn write(tensors: &Tensors, path: &Path) {
    let bytes = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let data: Vec<_> = (tensors.iter())
        .map(|(name, (shape, values))| (name, shape, bytes(values)))
        .collect();
    let views = data.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, (*shape).clone(), bytes).expect("view");
        (name.as_str(), view)
    });
    safetensors::serialize_to_file(views, None, path).expect("written");
}

/// A golden model in single precision, so that merging rounds nothing.
fn single_precision(model: &str, folder: &Path) -> PathBuf {
    let (from, to) = (golden(model), folder.join("source"));
    std::fs::create_dir_all(&to).expect("folder");
    std::fs::copy(from.join("config.json"), to.join("config.json")).expect("config");
    write(
        &tensors(&from.join("model.safetensors")),
        &to.join("model.safetensors"),
    );
    to
}

/// Numbers between -0.1 and 0.1 without pattern.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 5045.0 - 0.1;
    (0..count).map(value).collect()
}

/// A model, and modules of it that files store as one (by architecture) or in an order of their own.
struct Case {
    model: &'static str,
    modules: &'static [&'static str],
    /// What GGUFs call them.
    in_gguf: &'static [&'static str],
    factors: usize,
}

const CASES: [Case; 3] = [
    Case {
        model: "models/phi3",
        modules: &["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
        in_gguf: &["attn_qkv", "attn_output", "ffn_up", "ffn_down"],
        factors: 24,
    },
    // Its checkpoints have rotary pairs side by side, as its GGUFs have.
    Case {
        model: "models/deepseek-v2-lite",
        modules: &["q_proj", "kv_a_proj_with_mqa", "o_proj"],
        in_gguf: &["attn_q", "attn_kv_a_mqa", "attn_output"],
        factors: 12,
    },
    Case {
        model: "models/granite",
        modules: &["q_proj", "k_proj", "down_proj"],
        in_gguf: &["attn_q", "attn_k", "ffn_down"],
        factors: 18,
    },
];

/// A LoRA of rank 3 on these modules as PEFT writes it, and a checkpoint with `W + 2 B A` in place of `W`.
fn low_rank_adapter(case: &Case, source: &Path, adapter: &Path, merged: &Path) {
    const RANK: usize = 3;
    let mut model = tensors(&source.join("model.safetensors"));
    let mut factors = Tensors::new();
    let changed = model.iter_mut().filter(|(name, _)| {
        case.modules
            .iter()
            .any(|m| name.ends_with(&format!(".{m}.weight")))
    });
    for (seed, (name, (shape, weight))) in changed.enumerate() {
        let (n, k) = (shape[0], shape[1]);
        let (a, b) = (noise(RANK * k, 2 * seed), noise(n * RANK, 2 * seed + 1));
        for (i, w) in weight.iter_mut().enumerate() {
            let (row, column) = (i / k, i % k);
            let product = (0..RANK).map(|r| b[row * RANK + r] * a[r * k + column]);
            *w += 2.0 * product.sum::<f32>();
        }
        let module = name.strip_suffix(".weight").expect("a weight");
        let stem = format!("base_model.model.{module}");
        factors.insert(format!("{stem}.lora_A.weight"), (vec![RANK, k], a));
        factors.insert(format!("{stem}.lora_B.weight"), (vec![n, RANK], b));
    }
    assert_eq!(factors.len(), case.factors, "{}", case.model);
    for folder in [adapter, merged] {
        std::fs::create_dir_all(folder).expect("folder");
    }
    let config = json!({
        "peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK,
        "target_modules": case.modules,
    });
    std::fs::write(adapter.join("adapter_config.json"), config.to_string()).expect("config");
    write(&factors, &adapter.join("adapter_model.safetensors"));
    std::fs::copy(source.join("config.json"), merged.join("config.json")).expect("config");
    write(&model, &merged.join("model.safetensors"));
}

/// An adapter of such modules is the model with that change, from a folder and from a GGUF; and merging writes it.
#[test]
fn modules_stored_otherwise_take_adapters() {
    for case in &CASES {
        let folder = tempfile::tempdir().expect("folder");
        let source = single_precision(case.model, folder.path());
        let (adapter, by_hand) = (folder.path().join("lora"), folder.path().join("by-hand"));
        low_rank_adapter(case, &source, &adapter, &by_hand);
        let want = logits(&open(&by_hand), None);
        let gguf = folder.path().join("model.gguf");
        let file = rusty_loader::open(&source).expect(case.model);
        std::fs::write(&gguf, twin(&*file)).expect("written");
        let out = folder.path().join("merged");
        for (source, out) in [(source, out.clone()), (gguf, out.with_extension("gguf"))] {
            check(case, &adapter, &source, &out, &want);
        }
    }
}

fn check(case: &Case, adapter: &Path, source: &Path, out: &Path, want: &[f32]) {
    let engine = open(source);
    let base = engine.adapter_base();
    let lora = load(adapter, &base, Precision::Stored).expect("adapter");
    let paths = (source, out);
    merge(&[(&lora, 1.0)], Method::Linear, &base, paths, &|_, _| {}).expect("merged");
    let what = format!("{} in {}", case.model, source.display());
    let kind = if source.is_dir() { "folder" } else { "file" };
    let file = out.with_file_name(format!("{kind}-lora.gguf"));
    export(&lora, &base, &file, Container::Gguf).expect("exported");
    let modules: BTreeSet<String> = (Gguf::open(&file).expect("GGUF").tensors.iter())
        .map(|t| t.name.split('.').nth(2).expect("a module").to_string())
        .collect();
    let known = case.in_gguf.iter().map(|m| m.to_string());
    assert_eq!(modules, known.collect(), "{what}");
    let again = load(&file, &base, Precision::Stored).expect("read back");
    let again = engine.attach(again).expect("attached");
    assert_close(&format!("{what}, by GGUF"), &logits(&engine, again), want);
    let peft = file.with_extension("peft");
    export(&lora, &base, &peft, Container::Peft).expect("exported");
    let stored = |folder: &Path| tensors(&folder.join("adapter_model.safetensors"));
    assert_eq!(stored(&peft), stored(adapter), "{what}");
    let lora = engine.attach(lora).expect("attached");
    let plain = logits(&engine, None);
    let most = plain.iter().zip(want).map(|(a, b)| (a - b).abs());
    assert!(most.fold(0.0, f32::max) > 0.1, "the adapter does nothing");
    assert_close(&what, &logits(&engine, lora), want);
    assert_close(&what, &logits(&open(out), None), want);
}

/// Products that files store as one module may have factors, and ranks, of their own: the module then has all of their ranks.
#[test]
fn factors_of_their_own_become_one_modules() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = open(&golden("models/phi3"));
    let base = engine.adapter_base();
    let mut adapter = random("random", &base.graph.sites, 3, 7, Precision::F16);
    let other = random("other", &base.graph.sites, 5, 8, Precision::F16);
    let is = |id: SiteId, part: &str| base.graph.site(id).name.ends_with(part);
    adapter
        .sites
        .retain(|(id, _)| !is(*id, "attn_q") && !is(*id, "ffn_up"));
    let queries = other.sites.into_iter().filter(|(id, _)| is(*id, "attn_q"));
    adapter.sites.extend(queries);
    adapter.sites.sort_by_key(|(id, _)| *id);
    let paths = ["lora", "lora.gguf"].map(|name| folder.path().join(name));
    for path in &paths {
        export(&adapter, &base, path, Container::of(path)).expect("exported");
    }
    let want = logits(&engine, engine.attach(adapter).expect("attached"));
    for path in &paths {
        let again = load(path, &base, Precision::Stored).expect("read back");
        let again = engine.attach(again).expect("attached");
        assert_close(&path.display().to_string(), &logits(&engine, again), &want);
    }
}

/// The text model of a checkpoint of several kinds of input is merged in its place; all other tensors stay.
#[test]
fn text_models_inside_others_merge() {
    let folder = tempfile::tempdir().expect("folder");
    let plain = golden("models/gemma3");
    let source = folder.path().join("source");
    std::fs::create_dir_all(&source).expect("folder");
    let mut stored: Tensors = tensors(&plain.join("model.safetensors"))
        .into_iter()
        .map(|(name, tensor)| (format!("language_model.{name}"), tensor))
        .collect();
    let picture = ("vision_tower.patch.weight", (vec![4, 8], noise(32, 5)));
    stored.insert(picture.0.into(), picture.1.clone());
    write(&stored, &source.join("model.safetensors"));
    let config = std::fs::read(plain.join("config.json")).expect("config");
    let config: Value = serde_json::from_slice(&config).expect("config");
    let config = json!({"model_type": "gemma3", "text_config": config});
    std::fs::write(source.join("config.json"), config.to_string()).expect("config");

    let engine = open(&source);
    assert_eq!(logits(&engine, None), logits(&open(&plain), None));
    let base = engine.adapter_base();
    // With the head, which the checkpoint shares with its embedding.
    let adapter = random_with_head("random", &base.graph.sites, 4, 9, Precision::F16);
    let out = folder.path().join("merged");
    let paths = (&*source, &*out);
    let done = merge(&[(&adapter, 1.0)], Method::Linear, &base, paths, &|_, _| {});
    done.expect("merged");
    let want = logits(&engine, engine.attach(adapter).expect("attached"));
    let most = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max)
    };
    assert!(
        most(&want, &logits(&engine, None)) > 0.05,
        "the adapter does nothing"
    );
    assert_close("inside another", &logits(&open(&out), None), &want);
    assert_eq!(
        tensors(&out.join("model.safetensors"))[picture.0],
        picture.1
    );
}
