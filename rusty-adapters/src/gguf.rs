//! LoRA files of llama.cpp: GGUF with `general.type = adapter`, tensors `NAME.lora_a` and `NAME.lora_b`. (llama.cpp's
//! `convert_lora_to_gguf.py` and `llama-adapter.cpp`.) The factors of all experts of a block are one tensor `[experts, ..]`.
//!
//! The scale is `alpha / rank`, the rank being the tensors', or 1 where alpha is 0 or not stated. Factors of rotated
//! products of Llama models have their rows in interleaved order, as the weights of such a GGUF have.

use crate::base_model::{Base, Place};
use crate::config::Config;
use crate::draft::split_halves;
use crate::factors::transposed;
use crate::kinds::Assembly;
use crate::modules::{Modules, Parts};
use crate::precision::Precision;
use crate::tensors::Tensor;
use crate::{Error, Result};
use rusty_compiler::SlotData;
use rusty_loader::arch::{gguf_name, gguf_reorders_pairs};
use rusty_loader::gguf::Gguf;
use rusty_loader::{Format, Meta, SharedBytes};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads a LoRA file for a model.
pub(crate) fn load(path: &Path, base: &Base<'_>, precision: Precision) -> Result<SlotData> {
    let name = path
        .file_stem()
        .map_or_else(|| "adapter".into(), |n| n.to_string_lossy().into_owned());
    let file = Gguf::open(path)?;
    check_kind(&file, path, base)?;
    let alpha = alpha(&file, path)?;
    let interleaved = text(&file, "general.architecture").is_some_and(gguf_reorders_pairs);
    let mut modules = Modules {
        by_name: BTreeMap::new(),
        others: BTreeMap::new(),
        twice: None,
    };
    for info in &file.tensors {
        let format = Format::by_ggml_type(info.kind.id);
        let stored = Tensor {
            name: info.name.clone(),
            shape: info.shape.iter().map(|d| *d as usize).collect(),
            format: format.ok_or_else(|| {
                let what = format!("tensor '{}' of type {}", info.name, info.kind.name);
                Error::unsupported(path, what)
            })?,
            bytes: file.tensor_bytes(info).ok_or_else(|| {
                Error::malformed(path, format!("tensor '{}' is cut off", info.name))
            })?,
        };
        for tensor in unstacked(path, stored, base)? {
            let (module, part, tensor) = place(path, tensor, base, interleaved)?;
            let parts: &mut Parts = modules.by_name.entry(module).or_default();
            if let Some(other) = parts.insert(part, tensor) {
                let reason = format!("holds '{}' under two names", other.name);
                return Err(Error::malformed(path, reason));
            }
        }
    }
    rename_fused(path, &mut modules, base)?;
    let config = Config::plain(alpha);
    let mut assembly = Assembly::new(*base, path, &config);
    assembly.read(modules)?;
    assembly.finish(&name, precision)
}

pub(crate) fn text<'f>(file: &'f Gguf, key: &str) -> Option<&'f str> {
    file.meta.get(key).and_then(Meta::as_str)
}

/// Refuses what is no LoRA for the model.
fn check_kind(file: &Gguf, path: &Path, base: &Base<'_>) -> Result<()> {
    if text(file, "general.type") != Some("adapter") {
        return Err(Error::malformed(path, "is a model, not an adapter"));
    }
    if let Some(kind) = text(file, "adapter.type").filter(|kind| *kind != "lora") {
        return Err(Error::unsupported(path, format!("adapter type {kind}")));
    }
    if file.meta.contains_key("adapter.alora.invocation_tokens") {
        let what = "'adapter.alora.invocation_tokens'";
        return Err(Error::unsupported(path, what));
    }
    match text(file, "general.architecture") {
        Some(arch) if gguf_name(arch) != gguf_name(&base.graph.arch) => {
            let reason = format!("is for {arch}; the model is {}", base.graph.arch);
            Err(Error::malformed(path, reason))
        }
        _ => Ok(()),
    }
}

/// The stated alpha; 0 stands for none.
pub(crate) fn alpha(file: &Gguf, path: &Path) -> Result<Option<f64>> {
    match file.meta.get("adapter.lora.alpha").map(Meta::as_f64) {
        None => Ok(None),
        Some(Some(alpha)) if alpha.is_finite() => Ok(Some(alpha).filter(|a| *a != 0.0)),
        Some(_) => {
            let reason = "'adapter.lora.alpha' is not a number";
            Err(Error::malformed(path, reason))
        }
    }
}

/// GGUF calls the fused product of gate and up `ffn_up`: what has the rows of both is that product.
fn rename_fused(path: &Path, modules: &mut Modules, base: &Base<'_>) -> Result<()> {
    let rows = |module: &str| Some(base.graph.site(base.graph.site_named(module)?).n as usize);
    let both = |module: &str, parts: &Parts| {
        let stem = module.strip_suffix(".ffn_up")?;
        let all = rows(&format!("{stem}.ffn_gate"))? + rows(module)?;
        let stored = parts.get("lora_B.weight")?.shape.first()?;
        (*stored == all).then(|| (module.to_string(), format!("{stem}.ffn_gate_up")))
    };
    let fused: Vec<_> = (modules.by_name.iter())
        .filter_map(|(module, parts)| both(module, parts))
        .collect();
    for (module, renamed) in fused {
        if modules.by_name.contains_key(&renamed) {
            let reason =
                format!("holds the product of gate and up as '{module}' and as '{renamed}'");
            return Err(Error::malformed(path, reason));
        }
        if let Some(parts) = modules.by_name.remove(&module) {
            modules.by_name.insert(renamed, parts);
        }
    }
    Ok(())
}

/// The factors of all experts, or heads, that a tensor holds, one after the other: those of `blk.0.ffn_up_exps.weight.lora_a`
/// are `blk.0.ffn_up_exps.0.lora_a` and so on. Any other tensor is by itself.
fn unstacked(path: &Path, tensor: Tensor, base: &Base<'_>) -> Result<Vec<Tensor>> {
    let [count, rows, columns] = tensor.shape[..] else {
        return Ok(vec![tensor]);
    };
    let (weight, end) = tensor.name.rsplit_once('.').unwrap_or((&tensor.name, ""));
    let module = weight.strip_suffix(".weight").unwrap_or(weight);
    let sites = base.sites_of(module).map_or(0, |sites| sites.len());
    if sites == 0 || sites != count {
        let reason = match sites {
            0 => format!("but the model has no matrix for each expert or head at '{module}'"),
            _ => format!("the model's '{module}' needs {sites} matrices"),
        };
        return Err(tensor.misfit(path, reason));
    }
    let each = tensor.bytes.len() / count;
    let part = |i: usize| {
        let bytes = tensor.bytes.slice(i * each..(i + 1) * each)?;
        Some(Tensor {
            name: format!("{module}.{i}.{end}"),
            shape: vec![rows, columns],
            format: tensor.format,
            bytes,
        })
    };
    let parts = (0..count).map(part).collect::<Option<_>>();
    parts.ok_or_else(|| tensor.misfit(path, "is cut off".into()))
}

/// Module and part of a tensor, in the order of checkpoints.
fn place(
    path: &Path,
    mut tensor: Tensor,
    base: &Base<'_>,
    interleaved: bool,
) -> Result<(String, &'static str, Tensor)> {
    let unknown = || Error::unsupported(path, format!("tensor '{}'", tensor.name));
    let (weight, is_a) = match tensor.name.strip_suffix(".lora_a") {
        Some(weight) => (weight, true),
        None => (
            tensor.name.strip_suffix(".lora_b").ok_or_else(unknown)?,
            false,
        ),
    };
    let module = weight.strip_suffix(".weight").unwrap_or(weight).to_string();
    let place = base.canonical(&module).ok_or_else(|| Error::Misfit {
        path: path.into(),
        tensor: tensor.name.clone(),
        shape: tensor.shape.clone(),
        reason: format!("but the model has no '{weight}'"),
    })?;
    match place {
        Place::Embedding if is_a => {
            let vocab = base.graph.vocab as usize;
            let needed = format!("[{vocab}, rank]");
            let (_, rank) = tensor.matrix(path, "embedding", &needed)?;
            let values = tensor.shaped(path, &[vocab, rank], "embedding")?;
            let values = transposed(&values, vocab, rank);
            tensor = reordered(path, tensor, vec![rank, vocab], &values)?;
            Ok((module, "lora_embedding_A", tensor))
        }
        Place::Embedding => Ok((module, "lora_embedding_B", tensor)),
        Place::Sites(_) | Place::Latent(_) if is_a => Ok((module, "lora_A.weight", tensor)),
        Place::Latent(_) => Ok((module, "lora_B.weight", tensor)),
        Place::Sites(ids) => {
            let [id] = ids[..] else {
                // Files of architectures with fused products have rows in the order of checkpoints.
                return Ok((module, "lora_B.weight", tensor));
            };
            let heads = base.rotated_heads(id).filter(|_| interleaved);
            if let Some(head_dim) = heads {
                let site = base.graph.site(id);
                let (n, at) = (site.n as usize, format!("site '{}'", site.name));
                let rank = tensor.matrix(path, &at, &format!("[{n}, rank]"))?.1;
                let mut values = tensor.shaped(path, &[n, rank], &at)?;
                split_halves(&mut values, rank, head_dim);
                let shape = tensor.shape.clone();
                tensor = reordered(path, tensor, shape, &values)?;
            }
            Ok((module, "lora_B.weight", tensor))
        }
        Place::Norm(_) | Place::Experts(..) => Err(unknown()),
    }
}

/// A tensor with its values in another order, in the same format where that is one of floats.
fn reordered(path: &Path, tensor: Tensor, shape: Vec<usize>, values: &[f32]) -> Result<Tensor> {
    let format = match tensor.format {
        Format::Blocks(_) => Format::F32,
        float => float,
    };
    let bytes = format.encode(values);
    let bytes = bytes.ok_or_else(|| Error::unencoded(path, &tensor.name))?;
    Ok(Tensor {
        shape,
        format,
        bytes: SharedBytes::from_vec(bytes),
        ..tensor
    })
}
