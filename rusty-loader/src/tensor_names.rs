//! Canonical tensor names (GGUF's) for the names of Hugging Face checkpoints.
//!
//! Most architectures share their modules' names; where one uses a name for something else, its description says so, so
//! every function asks for the architecture's canonical id.

use crate::arch::Arch;

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
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_gate_up"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Names inside a block of an architecture, its own first.
fn block(arch: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let own = Arch::by_id(arch).map_or(&[][..], |a| a.modules);
    own.iter().chain(BLOCK)
}

/// The canonical name of a module, without `.weight` or `.bias`: `model.layers.3.self_attn.q_proj` is
/// `blk.3.attn_q`. `None` for a module that has no canonical name.
pub fn module_from_hf(arch: &str, module: &str) -> Option<String> {
    let outside = MODEL.iter().find(|(hf, _)| *hf == module);
    if let Some((_, canonical)) = outside {
        return Some((*canonical).to_owned());
    }
    let (layer, inner) = module.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (_, canonical) = block(arch).find(|(hf, _)| *hf == inner)?;
    Some(format!("blk.{layer}.{canonical}"))
}

/// The name in checkpoints of a canonical module: `blk.3.attn_q` is `model.layers.3.self_attn.q_proj`. `None` for
/// what has no such name.
pub fn module_to_hf(arch: &str, module: &str) -> Option<String> {
    let outside = MODEL.iter().find(|(_, canonical)| *canonical == module);
    if let Some((hf, _)) = outside {
        return Some((*hf).to_owned());
    }
    let (layer, inner) = module.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let own = Arch::by_id(arch).map_or(&[][..], |a| a.modules);
    // A name that the architecture uses for something else is not the one that is looked for.
    let free = |hf: &str, canonical: &str| own.iter().all(|(h, c)| *h != hf || *c == canonical);
    let (hf, _) = block(arch).find(|(hf, c)| *c == inner && free(hf, c))?;
    Some(format!("model.layers.{layer}.{hf}"))
}

/// The canonical name of a tensor: `model.layers.3.self_attn.q_proj.weight` is `blk.3.attn_q.weight`.
pub fn from_hf(arch: &str, name: &str) -> Option<String> {
    let (module, leaf) = name.rsplit_once('.')?;
    Some(format!("{}.{leaf}", module_from_hf(arch, module)?))
}

/// The name in checkpoints of a tensor with a canonical name.
pub fn to_hf(arch: &str, name: &str) -> Option<String> {
    let (module, leaf) = name.rsplit_once('.')?;
    Some(format!("{}.{leaf}", module_to_hf(arch, module)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for arch in ["llama", "gemma2"] {
            let shared = BLOCK.iter().filter(|(hf, _)| {
                let feed_forward = ["pre_feedforward_layernorm", "post_feedforward_layernorm"];
                arch == "gemma2" || !feed_forward.contains(hf)
            });
            let inside = shared.map(|(hf, _)| format!("model.layers.7.{hf}"));
            let outside = MODEL.iter().map(|(hf, _)| (*hf).to_owned());
            for hf in inside.chain(outside) {
                let canonical = from_hf(arch, &format!("{hf}.weight")).expect("known");
                assert_eq!(to_hf(arch, &canonical), Some(format!("{hf}.weight")));
            }
        }
        assert_eq!(module_to_hf("llama", "blk.x.attn_q"), None);
    }
}
