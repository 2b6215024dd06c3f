//! The tensors of an adapter by the module they belong to.

use crate::tensors::Tensor;
use std::collections::BTreeMap;

/// Endings of tensor names that state what a tensor is to its module; longer ones first.
const PARTS: [&str; 26] = [
    "lora_magnitude_vector.weight",
    "lora_magnitude_vector",
    "lora_embedding_A",
    "lora_embedding_B",
    "lora_A.weight",
    "lora_B.weight",
    "lora_A.bias",
    "lora_B.bias",
    "ia3_l",
    "hada_w1_a",
    "hada_w1_b",
    "hada_w2_a",
    "hada_w2_b",
    "lokr_w1_a",
    "lokr_w1_b",
    "lokr_w1",
    "lokr_w2_a",
    "lokr_w2_b",
    "lokr_w2",
    "vera_lambda_b",
    "vera_lambda_d",
    "base_layer.bias",
    "base_layer.weight",
    "original_module.weight",
    "bias",
    "weight",
];

/// What a module has.
pub(crate) type Parts = BTreeMap<&'static str, Tensor>;

/// Modules with their tensors, and the tensors that belong to none.
pub(crate) struct Modules {
    pub by_name: BTreeMap<String, Parts>,
    pub others: BTreeMap<String, Tensor>,
    /// A tensor that another one is, too, but for the name of an adapter.
    pub twice: Option<String>,
}

impl Modules {
    /// Sorts tensors named as PEFT writes them.
    pub fn sort(tensors: BTreeMap<String, Tensor>) -> Self {
        let mut modules = Self {
            by_name: BTreeMap::new(),
            others: BTreeMap::new(),
            twice: None,
        };
        for (name, tensor) in tensors {
            match split(&name) {
                Some((module, part)) => {
                    let parts = modules.by_name.entry(module).or_default();
                    if parts.insert(part, tensor).is_some() {
                        modules.twice = Some(name);
                    }
                }
                None => {
                    let plain = without_adapter(&name);
                    if modules.others.insert(plain, tensor).is_some() {
                        modules.twice = Some(name);
                    }
                }
            }
        }
        modules
    }
}

/// How the names of adapters' parameters begin.
const KINDS: [&str; 5] = ["lora_", "ia3_", "hada_", "lokr_", "vera_"];

/// Whether an adapter's own name may follow: `lora_A.sql.weight`.
fn may_be_named(segment: &str) -> bool {
    let parameters = PARTS.iter().filter_map(|part| part.split('.').next());
    let mut all = parameters.chain(["vera_A", "vera_B"]);
    let is_kind = KINDS.iter().any(|kind| segment.starts_with(kind));
    segment == "modules_to_save" || (is_kind && all.any(|parameter| parameter == segment))
}

/// A tensor's name without that of an adapter and of what wraps modules that are saved whole.
fn without_adapter(name: &str) -> String {
    let mut kept: Vec<&str> = vec![];
    let mut after_parameter = false;
    for segment in name.split('.') {
        let is_leaf = ["weight", "bias"].contains(&segment);
        let is_name = segment == "default" || (after_parameter && !is_leaf);
        after_parameter = !is_name && may_be_named(segment);
        if !is_name && segment != "modules_to_save" {
            kept.push(segment);
        }
    }
    kept.join(".")
}

/// `base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight` is `lora_A.weight` of
/// `model.layers.3.self_attn.q_proj`.
fn split(tensor: &str) -> Option<(String, &'static str)> {
    let plain = without_adapter(tensor);
    let part = PARTS.iter().find(|part| {
        let module = plain.strip_suffix(**part);
        module.is_some_and(|m| m.ends_with('.'))
    })?;
    let module = &plain[..plain.len() - part.len() - 1];
    let module = module.strip_prefix("base_model.model.").unwrap_or(module);
    let part = match *part {
        "lora_magnitude_vector.weight" => "lora_magnitude_vector",
        part => part,
    };
    Some((module.into(), part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_names_and_wrappers_are_left_out() {
        let stem = "base_model.model.model.layers.3.self_attn.q_proj";
        let module = "model.layers.3.self_attn.q_proj";
        for (name, part) in [
            ("lora_A.weight", "lora_A.weight"),
            ("lora_A.default.weight", "lora_A.weight"),
            ("lora_A.default_0.weight", "lora_A.weight"),
            ("lora_B.sql.weight", "lora_B.weight"),
            ("lora_B.sql.bias", "lora_B.bias"),
            ("lora_embedding_A.sql", "lora_embedding_A"),
            ("lora_magnitude_vector.sql.weight", "lora_magnitude_vector"),
            ("ia3_l.sql", "ia3_l"),
            ("lokr_w2_a.sql", "lokr_w2_a"),
            ("vera_lambda_b", "vera_lambda_b"),
            ("modules_to_save.sql.weight", "weight"),
            ("modules_to_save.weight", "weight"),
            ("original_module.weight", "original_module.weight"),
            ("base_layer.bias", "base_layer.bias"),
        ] {
            let have = split(&format!("{stem}.{name}"));
            assert_eq!(have, Some((module.to_string(), part)), "{name}");
        }
        assert_eq!(split("prompt_embeddings"), None);
        assert_eq!(
            without_adapter("base_model.vera_A.sql"),
            "base_model.vera_A"
        );
        let saved = "model.lm_head.modules_to_save.lora_x.weight";
        assert_eq!(without_adapter(saved), "model.lm_head.weight");
        let module = "model.lora_proj.lora_A.weight";
        assert_eq!(without_adapter(module), module);
    }
}
