//! A LoRA as PEFT saves it.

use super::{At, Lora, Matrix};
use crate::base_model::Base;
use crate::owned_tensor::OwnedTensor;
use crate::{Error, Result, dtype};
use rusty_loader::output_file::write_whole;
use rusty_loader::tensor_names::module_to_hf;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Fills the folder `out`.
pub(super) fn write(lora: &Lora, base: &Base<'_>, out: &Path) -> Result<()> {
    let mut modules = vec![];
    for pair in &lora.pairs {
        let module = module_to_hf(&base.graph.arch, &pair.module).ok_or_else(|| {
            Error::unsupported(out, format!("'{}' in a PEFT folder", pair.module))
        })?;
        modules.push(module);
    }
    let mut tensors: Vec<(String, OwnedTensor)> = vec![];
    for (pair, module) in lora.pairs.iter().zip(&modules) {
        let name = |end: &str| format!("base_model.model.{module}.{end}");
        let ends = match pair.at {
            At::Site(_) | At::Sites | At::Experts(_) => ["lora_A.weight", "lora_B.weight"],
            At::Embedding => ["lora_embedding_A", "lora_embedding_B"],
        };
        for (end, matrix) in ends.into_iter().zip([&pair.a, &pair.b]) {
            let tensor = tensor(matrix, out, &name(end))?;
            tensors.push((name(end), tensor));
        }
        if let Some(bias) = &pair.bias {
            tensors.push((name("lora_B.bias"), OwnedTensor::floats(bias)));
        }
    }
    let config = config(lora, &modules, base);
    let config = serde_json::to_vec_pretty(&config).unwrap_or_default();
    let path = out.join("adapter_config.json");
    std::fs::write(&path, config).map_err(|reason| Error::Io { path, reason })?;
    let path = out.join("adapter_model.safetensors");
    let metadata = [("format".to_string(), "pt".to_string())].into();
    write_whole(&path, |part| {
        safetensors::serialize_to_file(tensors.iter().map(|(n, t)| (n, t)), Some(metadata), part)
            .map_err(|e| Error::malformed(&path, e.to_string()))
    })
}

fn config(lora: &Lora, modules: &[String], base: &Base<'_>) -> Value {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for pair in &lora.pairs {
        *counts.entry(pair.a.rows).or_default() += 1;
    }
    let usual = counts.iter().max_by_key(|(_, count)| **count);
    let usual = usual.map_or(1, |(rank, _)| *rank);
    let others = lora.pairs.iter().zip(modules);
    let others = others.filter(|(pair, _)| pair.a.rows != usual);
    let pattern = |(pair, module): (&super::Pair, &String)| {
        (
            format!("^{}$", module.replace('.', r"\.")),
            json!(pair.a.rows),
        )
    };
    let rank_pattern: Map<String, Value> = others.map(pattern).collect();
    let mut targets: Vec<&str> = modules
        .iter()
        .filter_map(|m| m.rsplit('.').next())
        .collect();
    targets.sort_unstable();
    targets.dedup();
    let biased = lora.pairs.iter().any(|p| p.bias.is_some());
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.file.map(|f| f.label()),
        "r": usual,
        "lora_alpha": lora.alpha,
        "rank_pattern": rank_pattern,
        "target_modules": targets,
        "lora_bias": biased,
        "bias": "none",
        "use_rslora": false,
        "use_dora": false,
        "fan_in_fan_out": false,
        "inference_mode": true,
        "lora_dropout": 0.0,
    })
}

/// A matrix as tensor `name` of the folder `out`.
fn tensor(matrix: &Matrix, out: &Path, name: &str) -> Result<OwnedTensor> {
    Ok(OwnedTensor {
        dtype: dtype::of(matrix.format).ok_or_else(|| Error::unencoded(out, name))?,
        shape: vec![matrix.rows, matrix.columns],
        bytes: matrix.bytes(out, name)?,
    })
}
