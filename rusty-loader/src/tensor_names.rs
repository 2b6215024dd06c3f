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
    ("mlp.gate", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("mlp.gate_up_proj", "ffn_gate_up"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// A bias on experts' scores, whose name in checkpoints is no module's.
const SCORE_BIAS: &str = "exp_probs_b.bias";

/// Matrices of an expert, behind `experts.I.`.
const EXPERT: &[(&str, &str)] = &[
    ("gate_proj", "ffn_gate_exps"),
    ("up_proj", "ffn_up_exps"),
    ("down_proj", "ffn_down_exps"),
    ("w1", "ffn_gate_exps"),
    ("w3", "ffn_up_exps"),
    ("w2", "ffn_down_exps"),
];

/// The canonical name of an expert's matrix: `mlp.experts.5.up_proj` is `ffn_up_exps.5`.
fn expert_from_hf(inner: &str) -> Option<String> {
    let (_, rest) = inner.split_once("experts.")?;
    let (expert, matrix) = rest.split_once('.')?;
    let expert: u32 = expert.parse().ok()?;
    let (_, canonical) = EXPERT.iter().find(|(hf, _)| *hf == matrix)?;
    Some(format!("{canonical}.{expert}"))
}

/// The name in checkpoints: Mixtral has one of its own.
fn expert_to_hf(arch: &str, inner: &str) -> Option<String> {
    let (matrix, expert) = inner.split_once('.')?;
    let expert: u32 = expert.parse().ok()?;
    let short = arch == "mixtral";
    let own = |hf: &str| hf.starts_with('w') == short;
    let (hf, _) = EXPERT.iter().find(|(hf, c)| *c == matrix && own(hf))?;
    let module = if short { "block_sparse_moe" } else { "mlp" };
    Some(format!("{module}.experts.{expert}.{hf}"))
}

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
    if let Some(canonical) = expert_from_hf(inner) {
        return Some(format!("blk.{layer}.{canonical}"));
    }
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
    if let Some(hf) = expert_to_hf(arch, inner) {
        return Some(format!("model.layers.{layer}.{hf}"));
    }
    let own = Arch::by_id(arch).map_or(&[][..], |a| a.modules);
    // A name that the architecture uses for something else is not the one that is looked for.
    let free = |hf: &str, canonical: &str| own.iter().all(|(h, c)| *h != hf || *c == canonical);
    let (hf, _) = block(arch).find(|(hf, c)| *c == inner && free(hf, c))?;
    Some(format!("model.layers.{layer}.{hf}"))
}

/// The canonical name of a tensor: `model.layers.3.self_attn.q_proj.weight` is `blk.3.attn_q.weight`.
/// In models of several kinds of input the text model's names have a prefix, before or behind `model.`.
pub fn from_hf(arch: &str, name: &str) -> Option<String> {
    if let Some(inner) = name.strip_prefix("model.language_model.") {
        return from_hf(arch, &format!("model.{inner}"));
    }
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    if let Some(router) = name.strip_suffix(".gate.e_score_correction_bias") {
        let gate = module_from_hf(arch, &format!("{router}.gate"))?;
        let block = gate.strip_suffix(".ffn_gate_inp")?;
        return Some(format!("{block}.{SCORE_BIAS}"));
    }
    let (module, leaf) = name.rsplit_once('.')?;
    Some(format!("{}.{leaf}", module_from_hf(arch, module)?))
}

/// Whether a tensor is the text model's: its name, or that of the module that it is part of, has a canonical one.
pub(crate) fn is_in_model(arch: &str, name: &str) -> bool {
    let modules = name.match_indices('.').map(|(at, _)| &name[..at]);
    from_hf(arch, name).is_some()
        || modules
            .map(|m| format!("{m}.weight"))
            .any(|m| from_hf(arch, &m).is_some())
}

/// Whether checkpoints of an architecture store the norms' weights less one.
pub fn norms_less_one(arch: &str) -> bool {
    Arch::by_id(arch).is_some_and(|a| a.norms_less_one)
}

/// The name in checkpoints of a tensor with a canonical name.
pub fn to_hf(arch: &str, name: &str) -> Option<String> {
    if let Some(block) = name.strip_suffix(SCORE_BIAS) {
        let gate = module_to_hf(arch, &format!("{block}ffn_gate_inp"))?;
        return Some(format!("{gate}.e_score_correction_bias"));
    }
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
                (arch == "gemma2" || !feed_forward.contains(hf)) && !hf.starts_with("block_sparse")
            });
            let inside = shared.map(|(hf, _)| format!("model.layers.7.{hf}"));
            let outside = MODEL.iter().map(|(hf, _)| (*hf).to_owned());
            for hf in inside.chain(outside) {
                let canonical = from_hf(arch, &format!("{hf}.weight")).expect("known");
                assert_eq!(to_hf(arch, &canonical), Some(format!("{hf}.weight")));
            }
        }
        for (arch, hf) in [
            ("mixtral", "model.layers.1.block_sparse_moe.experts.3.w2"),
            ("qwen3moe", "model.layers.1.mlp.experts.12.up_proj"),
        ] {
            let canonical = module_from_hf(arch, hf).expect("known");
            assert_eq!(module_to_hf(arch, &canonical).as_deref(), Some(hf));
        }
        assert_eq!(module_to_hf("llama", "blk.x.attn_q"), None);
    }
}
