//! A GGUF container under canonical keys.

use std::collections::HashMap;
use std::path::Path;

use super::Gguf;
use crate::arch::Arch;
use crate::meta::keys;
use crate::{
    Error, Format, LoadedModel, Meta, Result, SharedBytes, WeightView, fused, latent, structure,
};

/// Opens a model in one GGUF file, or in several whose first this is.
pub(crate) fn open(path: &Path) -> Result<LoadedModel> {
    model(path, Gguf::open(path)?)
}

/// Opens a model in the bytes of a GGUF file, which `path` names in errors.
pub(crate) fn from_bytes(path: &Path, bytes: SharedBytes) -> Result<LoadedModel> {
    model(path, Gguf::from_bytes(path, bytes)?)
}

fn model(path: &Path, file: Gguf) -> Result<LoadedModel> {
    if file.meta.get("general.type").and_then(Meta::as_str) == Some("adapter") {
        let reason = "is an adapter, not a model; open the model that it is for";
        return Err(Error::malformed(path, reason));
    }
    let prefix = architecture(path, &file)?.to_owned();
    let found = Arch::by_gguf_name(&prefix).ok_or_else(|| Arch::unknown(path, &prefix))?;
    let tensors = views(path, &file)?;
    let mut meta = canonical(&prefix, file.meta);
    complete(&mut meta, found, &tensors);
    let tensors = latent::split(&meta, fused::split(&meta, tensors));
    // Files of the Mistral family carry Llama's name; only they state a window or experts.
    let stated = |key: &str| meta.get(key).and_then(Meta::as_u64).is_some_and(|n| n > 0);
    let states = |key: &str| found.id == "llama" && stated(key);
    let arch = match (states(keys::EXPERT_COUNT), states(keys::SLIDING_WINDOW)) {
        (true, _) => "mixtral",
        (_, true) => "mistral",
        _ => found.id,
    };
    let model = LoadedModel::new(path.display().to_string(), arch, meta, tensors);
    structure::check(path, &model)?;
    Ok(model)
}

fn architecture<'a>(path: &Path, file: &'a Gguf) -> Result<&'a str> {
    match file.meta.get("general.architecture") {
        Some(Meta::Str(name)) => Ok(name),
        Some(other) => Err(Error::malformed(
            path,
            format!("general.architecture is {other}, not text"),
        )),
        None => Err(Error::malformed(path, "general.architecture is missing")),
    }
}

fn views(path: &Path, file: &Gguf) -> Result<Vec<(String, WeightView)>> {
    let mut views = Vec::with_capacity(file.tensors.len());
    for info in &file.tensors {
        let format = Format::by_ggml_type(info.kind.id).ok_or_else(|| {
            Error::unsupported(
                path,
                format!("format {} of tensor '{}'", info.kind.name, info.name),
                "weights are F32, F16, BF16 or one of the block formats that quantizers write",
            )
        })?;
        let outside = || Error::malformed(path, format!("tensor '{}' lies outside", info.name));
        let bytes = file.tensor_bytes(info).ok_or_else(outside)?;
        let shape = info.shape.iter().map(|&d| d as usize).collect();
        let view = WeightView {
            bytes,
            format,
            shape,
        };
        views.push((info.name.clone(), view));
    }
    Ok(views)
}

/// Keys without their architecture's prefix; all others as they are.
fn canonical(prefix: &str, meta: HashMap<String, Meta>) -> HashMap<String, Meta> {
    let strip = |key: String| {
        key.strip_prefix(prefix)
            .and_then(|k| k.strip_prefix('.'))
            .map(str::to_owned)
            .unwrap_or(key)
    };
    meta.into_iter().map(|(k, v)| (strip(k), v)).collect()
}

/// Adds the canonical keys that GGUF states in another way.
fn complete(meta: &mut HashMap<String, Meta>, arch: &Arch, tensors: &[(String, WeightView)]) {
    let tensor = |name: &str| {
        tensors
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, view)| view)
    };
    let tied = tensor("output.weight").is_none();
    let tokens = meta.get("tokenizer.ggml.tokens").and_then(Meta::as_array);
    let rows = || tensor("token_embd.weight").map(WeightView::rows);
    let vocab = tokens.map(<[Meta]>::len).or_else(rows);
    let stated = |key: &str| meta.get(key).cloned();
    let derived = [
        (keys::ROPE_LAYOUT, Some(arch.gguf_rope.name().into())),
        (keys::HIDDEN_ACT, Some(arch.gguf_act.into())),
        (keys::TIE_WORD_EMBEDDINGS, Some(tied.into())),
        (keys::VOCAB_SIZE, vocab.map(|n| Meta::U64(n as u64))),
        (keys::EOS_TOKEN_IDS, Some(end_ids(meta))),
        (keys::BOS_TOKEN_ID, stated("tokenizer.ggml.bos_token_id")),
    ];
    for (key, value) in derived {
        if let Some(value) = value {
            meta.entry(key.to_owned()).or_insert(value);
        }
    }
    for (key, value) in arch.gguf_defaults {
        meta.entry((*key).to_owned()).or_insert(value.into());
    }
    complete_latent(meta);
    complete_rope(meta);
}

/// Latent attention in files from before it was computed as such: heads' widths under the common keys.
fn complete_latent(meta: &mut HashMap<String, Meta>) {
    if !meta.contains_key(keys::KV_LORA_RANK) {
        return;
    }
    for (common, latent) in [
        (keys::KEY_LENGTH, keys::KEY_LENGTH_LATENT),
        (keys::VALUE_LENGTH, keys::VALUE_LENGTH_LATENT),
    ] {
        if let Some(width) = meta.get(common).cloned() {
            meta.entry(latent.to_owned()).or_insert(width);
        }
    }
}

/// Ids that end a generation: those the file names, and control tokens with the usual spelling of an end of
/// turn, which many files do not name (as llama.cpp does).
fn end_ids(meta: &HashMap<String, Meta>) -> Meta {
    const SPELLINGS: [&str; 7] = [
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
    ];
    const CONTROL: u64 = 3;
    let named = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let mut ids: Vec<u64> = named
        .iter()
        .filter_map(|k| meta.get(&format!("tokenizer.ggml.{k}"))?.as_u64())
        .collect();
    let list = |key: &str| meta.get(key).and_then(Meta::as_array).unwrap_or_default();
    let tokens = list("tokenizer.ggml.tokens");
    for (id, kind) in list("tokenizer.ggml.token_type").iter().enumerate() {
        let text = || tokens.get(id).and_then(Meta::as_str);
        if kind.as_u64() == Some(CONTROL) && text().is_some_and(|t| SPELLINGS.contains(&t)) {
            ids.push(id as u64);
        }
    }
    let mut seen = Vec::new();
    ids.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    ids.into_iter().map(Meta::U64).collect()
}

/// GGUF's older spelling of linear scaling, and YaRN's factor, which GGUF states relative to the usual one.
fn complete_rope(meta: &mut HashMap<String, Meta>) {
    let float = |meta: &HashMap<String, Meta>, key: &str| meta.get(key).and_then(Meta::as_f64);
    if !meta.contains_key(keys::ROPE_SCALING_TYPE)
        && let Some(factor) = float(meta, "rope.scale_linear").filter(|&f| f != 1.0 && f != 0.0)
    {
        meta.insert(keys::ROPE_SCALING_TYPE.into(), "linear".into());
        meta.insert(keys::ROPE_SCALING_FACTOR.into(), factor.into());
    }
    let yarn = meta.get(keys::ROPE_SCALING_TYPE).and_then(Meta::as_str) == Some("yarn");
    let relative = float(meta, keys::ROPE_SCALING_ATTN_FACTOR);
    let factor = float(meta, keys::ROPE_SCALING_FACTOR);
    let latent = yarn && meta.contains_key(keys::KV_LORA_RANK);
    if let (true, Some(tenth)) = (latent, float(meta, keys::ROPE_SCALING_YARN_LOG)) {
        // DeepSeek's: the scores are scaled, cos and sin by nothing but a stated factor.
        let all = Meta::F64(10.0 * tenth);
        meta.insert(keys::ROPE_SCALING_MSCALE_ALL_DIM.into(), all);
        meta.entry(keys::ROPE_SCALING_ATTN_FACTOR.into())
            .or_insert(Meta::F64(1.0));
        return;
    }
    if let (true, Some(relative), Some(factor)) = (yarn, relative, factor) {
        let usual = if factor > 1.0 {
            0.1 * factor.ln() + 1.0
        } else {
            1.0
        };
        let absolute = Meta::F64(relative * usual);
        meta.insert(keys::ROPE_SCALING_ATTN_FACTOR.into(), absolute);
    }
}
