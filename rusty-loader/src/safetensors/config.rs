//! `config.json`, in the current spelling and in that of older checkpoints, under canonical keys.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::json::to_meta;
use super::rope;
use crate::arch::{Arch, RopeLayout};
use crate::meta::keys;
use crate::{Error, Meta, Result};

/// Entries that mean the same under another name.
const RENAMED: &[(&str, &str)] = &[
    ("num_hidden_layers", keys::BLOCK_COUNT),
    ("max_position_embeddings", keys::CONTEXT_LENGTH),
    ("hidden_size", keys::EMBEDDING_LENGTH),
    ("intermediate_size", keys::FEED_FORWARD_LENGTH),
    ("num_attention_heads", keys::HEAD_COUNT),
    ("num_key_value_heads", keys::HEAD_COUNT_KV),
    ("head_dim", keys::KEY_LENGTH),
    ("head_dim", keys::VALUE_LENGTH),
    ("rms_norm_eps", keys::RMS_EPSILON),
    ("vocab_size", keys::VOCAB_SIZE),
    ("hidden_act", keys::HIDDEN_ACT),
    ("hidden_activation", keys::HIDDEN_ACT),
    ("attn_logit_softcapping", keys::SCORE_CAP),
    ("final_logit_softcapping", keys::LOGIT_CAP),
    ("query_pre_attn_scalar", keys::QUERY_SCALAR),
    ("sliding_window_pattern", keys::SLIDING_PATTERN),
    ("_sliding_window_pattern", keys::SLIDING_PATTERN),
    ("num_experts", keys::EXPERT_COUNT),
    ("num_local_experts", keys::EXPERT_COUNT),
    ("num_experts_per_tok", keys::EXPERT_USED_COUNT),
    ("moe_intermediate_size", keys::EXPERT_FEED_FORWARD_LENGTH),
    ("norm_topk_prob", keys::EXPERT_WEIGHTS_NORM),
    ("embedding_multiplier", keys::EMBEDDING_SCALE),
    ("residual_multiplier", keys::RESIDUAL_SCALE),
    ("attention_multiplier", keys::ATTENTION_SCALE),
    ("logits_scaling", keys::LOGIT_SCALE),
    ("n_routed_experts", keys::EXPERT_COUNT),
    ("n_shared_experts", keys::EXPERT_SHARED_COUNT),
    ("routed_scaling_factor", keys::EXPERT_WEIGHTS_SCALE),
    ("n_group", keys::EXPERT_GROUP_COUNT),
    ("topk_group", keys::EXPERT_GROUP_USED_COUNT),
    ("q_lora_rank", keys::Q_LORA_RANK),
    ("kv_lora_rank", keys::KV_LORA_RANK),
    ("qk_rope_head_dim", keys::ROPE_DIMENSION_COUNT),
    ("v_head_dim", keys::VALUE_LENGTH_LATENT),
    ("tie_word_embeddings", keys::TIE_WORD_EMBEDDINGS),
    ("_name_or_path", keys::NAME),
];

/// The canonical metadata of a configuration of this architecture.
pub(super) fn canonical(path: &Path, config: &Value, arch: &Arch) -> Result<HashMap<String, Meta>> {
    let mut meta = HashMap::new();
    let Some(entries) = config.as_object() else {
        return Err(Error::malformed(path, "not a JSON object"));
    };
    for (key, value) in entries {
        if let Some(value) = to_meta(value) {
            meta.insert(format!("hf.{key}"), value);
        }
    }
    for (from, to) in RENAMED {
        if let Some(value) = meta.get(&format!("hf.{from}")).cloned() {
            meta.entry((*to).to_owned()).or_insert(value);
        }
    }
    if let Some(types) = meta.get("hf.layer_types").and_then(Meta::as_array) {
        let slides = |kind: &Meta| Meta::Bool(kind.as_str() == Some("sliding_attention"));
        let flags = types.iter().map(slides).collect();
        meta.insert(keys::SLIDING_PATTERN.to_owned(), flags);
    }
    latent(&mut meta);
    for (key, value) in arch.defaults {
        meta.entry((*key).to_owned()).or_insert(value.into());
    }
    meta.entry(keys::TIE_WORD_EMBEDDINGS.to_owned())
        .or_insert(Meta::Bool(false));
    let layout = match meta.get("hf.rope_interleave").and_then(Meta::as_bool) {
        Some(true) => RopeLayout::Interleaved,
        Some(false) => RopeLayout::Half,
        None => arch.hf_rope,
    };
    meta.insert(keys::ROPE_LAYOUT.to_owned(), layout.name().into());
    if let Some(window) = sliding_window(&meta) {
        meta.insert(keys::SLIDING_WINDOW.to_owned(), window);
    }
    rope::canonical(path, config, &mut meta)?;
    Ok(meta)
}

/// What configurations of latent attention state in parts, and those of experts as words.
fn latent(meta: &mut HashMap<String, Meta>) {
    let size = |key: &str| meta.get(key).and_then(Meta::as_u64);
    if let (Some(plain), Some(rotated)) = (
        size("hf.qk_nope_head_dim"),
        size(keys::ROPE_DIMENSION_COUNT),
    ) {
        let key = plain.saturating_add(rotated);
        meta.insert(keys::KEY_LENGTH_LATENT.to_owned(), Meta::U64(key));
    }
    // The choice without groups; configurations may state groups nonetheless.
    let method = meta.get("hf.topk_method").and_then(Meta::as_str);
    if method == Some("greedy") {
        meta.remove(keys::EXPERT_GROUP_COUNT);
        meta.remove(keys::EXPERT_GROUP_USED_COUNT);
    }
    let gating = match meta.get("hf.scoring_func").and_then(Meta::as_str) {
        Some("softmax") => 1,
        Some("sigmoid") => 2,
        _ => return,
    };
    meta.insert(keys::EXPERT_GATING.to_owned(), Meta::U64(gating));
}

/// The window, unless the configuration switches it off.
fn sliding_window(meta: &HashMap<String, Meta>) -> Option<Meta> {
    let used = meta.get("hf.use_sliding_window").and_then(Meta::as_bool);
    if used == Some(false) {
        return None;
    }
    meta.get("hf.sliding_window").cloned()
}
