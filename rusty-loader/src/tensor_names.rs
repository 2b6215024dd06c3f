//! Canonical tensor names (GGUF's) for the names of Hugging Face checkpoints.

/// Modules outside the blocks.
const MODEL: &[(&str, &str)] = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
];

/// Modules inside a block.
const BLOCK: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The canonical name of a module, without `.weight` or `.bias`: `model.layers.3.self_attn.q_proj` is
/// `blk.3.attn_q`. `None` for a module that has no canonical name.
pub fn module_from_hf(module: &str) -> Option<String> {
    let outside = MODEL.iter().find(|(hf, _)| *hf == module);
    if let Some((_, canonical)) = outside {
        return Some((*canonical).to_owned());
    }
    let (layer, inner) = module.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (_, canonical) = BLOCK.iter().find(|(hf, _)| *hf == inner)?;
    Some(format!("blk.{layer}.{canonical}"))
}

/// The canonical name of a tensor: `model.layers.3.self_attn.q_proj.weight` is `blk.3.attn_q.weight`.
pub fn from_hf(name: &str) -> Option<String> {
    let (module, leaf) = name.rsplit_once('.')?;
    Some(format!("{}.{leaf}", module_from_hf(module)?))
}
