//! Checkpoint folders as Hugging Face libraries write them: `config.json`, safetensors (one file or an index
//! over shards), `generation_config.json`, `tokenizer_config.json`.
//!
//! Headers are read through the `safetensors` crate, which proves that tensors cover the data without holes
//! or overlaps; weights stay in the mapping. Tensors get their [canonical names](crate::tensor_names); those
//! that have none keep their own.

mod config;
mod file;
mod generation;
mod json;
mod quantized;
mod rope;
mod shards;

use std::collections::HashSet;
use std::path::Path;

pub use file::SafetensorsFile;
use file::Stored;

use crate::arch::Arch;
use crate::meta::keys;
use crate::{
    Error, Format, LoadedModel, Meta, Result, SharedBytes, WeightView, fused, latent, structure,
    tensor_names,
};

/// Opens a checkpoint folder, or one safetensors file with the `config.json` beside it.
pub(crate) fn open(path: &Path) -> Result<LoadedModel> {
    if path.is_dir() {
        return read(path, path, shards::weights);
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    read(path, folder, |_| shards::all_of(path))
}

fn read(
    path: &Path,
    folder: &Path,
    weights: impl FnOnce(&Path) -> Result<Vec<(String, Stored)>>,
) -> Result<LoadedModel> {
    let config_path = &folder.join("config.json");
    let mut config = json::read_json(config_path)?;
    let method = quantized::Method::of(config_path, &config)?;
    // A model of several kinds of input: its text part is a model of its own.
    let text = config.get_mut("text_config").map(serde_json::Value::take);
    let of_several = text.is_some();
    config = text.unwrap_or(config);
    let Some(model_type) = config.get("model_type").and_then(|t| t.as_str()) else {
        let reason = "model_type is missing or not text";
        return Err(Error::malformed(config_path, reason));
    };
    let arch =
        Arch::by_model_type(model_type).ok_or_else(|| Arch::unknown(config_path, model_type))?;
    let mut meta = config::canonical(config_path, &config, arch)?;
    generation::canonical(folder, &mut meta)?;
    let mut tensors = weights(folder)?;
    let mut seen = HashSet::new();
    if of_several {
        // Of a model of several kinds of input only the text model is read.
        tensors.retain(|(name, _)| tensor_names::is_in_model(arch.id, name));
    }
    // Layers behind the last one predict further tokens; nothing reads them.
    let layers = meta.get(keys::BLOCK_COUNT).and_then(Meta::as_u64);
    tensors.retain(|(name, _)| !is_behind(name, layers));
    let mut tensors = match method {
        Some(method) => method.weights(path, tensors)?,
        None => quantized::plain(path, tensors)?,
    };
    for (name, view) in &mut tensors {
        if let Some(canonical) = tensor_names::from_hf(arch.id, name) {
            *name = canonical;
            if arch.norms_less_one && name.ends_with("norm.weight") {
                *view = plus_one(view, path)?;
            }
        }
        if !seen.insert(name.clone()) {
            return Err(Error::malformed(path, format!("two tensors are '{name}'")));
        }
    }
    let tensors = latent::split(&meta, fused::split(&meta, tensors));
    let model = LoadedModel::new(path.display().to_string(), arch.id, meta, tensors);
    structure::check(path, &model)?;
    Ok(model)
}

/// Whether a tensor belongs to a layer behind the model's last.
fn is_behind(name: &str, layers: Option<u64>) -> bool {
    let layer = name.strip_prefix("model.layers.");
    let layer = layer.and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
    layer
        .zip(layers)
        .is_some_and(|(layer, layers)| layer >= layers)
}

/// A norm's weights as others store them, in single precision.
fn plus_one(view: &WeightView, path: &Path) -> Result<WeightView> {
    let malformed = || Error::malformed(path, format!("a norm has the shape {:?}", view.shape));
    if view.shape.len() != 1 || view.bytes.len() != view.row_bytes() {
        return Err(malformed());
    }
    let mut values = vec![0.0; view.elements()];
    view.format.decode_row(&view.bytes, &mut values);
    let bytes = values
        .iter()
        .flat_map(|v| (v + 1.0).to_le_bytes())
        .collect();
    Ok(WeightView {
        bytes: SharedBytes::from_vec(bytes),
        format: Format::F32,
        shape: view.shape.clone(),
    })
}
