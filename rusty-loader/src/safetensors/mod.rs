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
mod rope;
mod shards;

use std::collections::HashSet;
use std::path::Path;

pub use file::SafetensorsFile;

use crate::arch::Arch;
use crate::{Error, LoadedModel, Result, WeightView, structure, tensor_names};

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
    weights: impl FnOnce(&Path) -> Result<Vec<(String, WeightView)>>,
) -> Result<LoadedModel> {
    let config_path = &folder.join("config.json");
    let config = json::read_json(config_path)?;
    let Some(model_type) = config.get("model_type").and_then(|t| t.as_str()) else {
        let reason = "model_type is missing or not text";
        return Err(Error::malformed(config_path, reason));
    };
    let arch =
        Arch::by_model_type(model_type).ok_or_else(|| Arch::unknown(config_path, model_type))?;
    let mut meta = config::canonical(config_path, &config)?;
    generation::canonical(folder, &mut meta)?;
    let mut tensors = weights(folder)?;
    let mut seen = HashSet::new();
    for (name, _) in &mut tensors {
        if let Some(canonical) = tensor_names::from_hf(name) {
            *name = canonical;
        }
        if !seen.insert(name.clone()) {
            return Err(Error::malformed(path, format!("two tensors are '{name}'")));
        }
    }
    let model = LoadedModel::new(path.display().to_string(), arch.id, meta, tensors);
    structure::check(path, &model)?;
    Ok(model)
}
