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

use std::collections::HashMap;
use std::path::Path;

pub use file::SafetensorsFile;

use crate::arch::Arch;
use crate::{Error, Meta, ModelFile, Result, WeightView, structure, tensor_names};

/// A model in a checkpoint folder.
pub(crate) struct SafetensorsModel {
    label: String,
    arch: &'static str,
    meta: HashMap<String, Meta>,
    names: Vec<String>,
    tensors: HashMap<String, WeightView>,
}

impl SafetensorsModel {
    /// Opens a folder, or one safetensors file with the `config.json` beside it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::read(path, path, &path.join("config.json"), shards::weights);
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        Self::read(path, folder, &folder.join("config.json"), |_| {
            shards::all_of(path)
        })
    }

    fn read(
        path: &Path,
        folder: &Path,
        config_path: &Path,
        weights: impl FnOnce(&Path) -> Result<Vec<(String, WeightView)>>,
    ) -> Result<Self> {
        let config = json::read_json(config_path)?;
        let Some(model_type) = config.get("model_type").and_then(|t| t.as_str()) else {
            return Err(Error::malformed(
                config_path,
                "model_type is missing or not text",
            ));
        };
        let arch = Arch::by_model_type(model_type)
            .ok_or_else(|| Arch::unknown(config_path, model_type))?;
        let mut meta = config::canonical(config_path, &config)?;
        generation::canonical(folder, &mut meta)?;
        let (mut names, mut tensors) = (Vec::new(), HashMap::new());
        for (name, view) in weights(folder)? {
            let canonical = tensor_names::from_hf(&name).unwrap_or(name);
            if tensors.insert(canonical.clone(), view).is_some() {
                let reason = format!("two tensors are '{canonical}'");
                return Err(Error::malformed(path, reason));
            }
            names.push(canonical);
        }
        let model = Self {
            label: path.display().to_string(),
            arch: arch.id,
            meta,
            names,
            tensors,
        };
        structure::check(path, &model)?;
        Ok(model)
    }
}

impl ModelFile for SafetensorsModel {
    fn arch(&self) -> &str {
        self.arch
    }

    fn meta(&self, key: &str) -> Option<&Meta> {
        self.meta.get(key)
    }

    fn tensor(&self, name: &str) -> Option<WeightView> {
        self.tensors.get(name).cloned()
    }

    fn tensor_names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn label(&self) -> &str {
        &self.label
    }
}
