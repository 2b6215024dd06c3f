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
}

impl Modules {
    /// Sorts tensors named as PEFT writes them.
    pub fn sort(tensors: BTreeMap<String, Tensor>) -> Self {
        let mut modules = Self {
            by_name: BTreeMap::new(),
            others: BTreeMap::new(),
        };
        for (name, tensor) in tensors {
            match split(&name) {
                Some((module, part)) => {
                    let parts = modules.by_name.entry(module).or_default();
                    parts.insert(part, tensor);
                }
                None => {
                    modules.others.insert(name, tensor);
                }
            }
        }
        modules
    }
}

/// `base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight` is `lora_A.weight` of
/// `model.layers.3.self_attn.q_proj`.
fn split(tensor: &str) -> Option<(String, &'static str)> {
    // Names of adapters and wrappers that some versions leave in.
    let plain = tensor
        .replace(".default", "")
        .replace(".modules_to_save", "");
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
