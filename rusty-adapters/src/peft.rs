//! PEFT adapter folders: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! What the tensors say decides where the adapter acts; the configuration decides its kind and scales. The format is
//! that of PEFT's configuration classes and `get_peft_model_state_dict`.

use crate::base_model::Base;
use crate::config::Config;
use crate::kinds::Assembly;
use crate::modules::Modules;
use crate::precision::Precision;
use crate::tensors::from_safetensors;
use crate::{Error, Result};
use rusty_compiler::SlotData;
use rusty_loader::SharedBytes;
use std::path::Path;

/// Reads a PEFT folder for a model.
pub(crate) fn load(folder: &Path, base: &Base<'_>, precision: Precision) -> Result<SlotData> {
    let path = folder.join("adapter_config.json");
    if !path.exists() {
        let reason = "is no PEFT folder: it has no adapter_config.json";
        return Err(Error::malformed(folder, reason));
    }
    let config = std::fs::read(&path).map_err(|reason| Error::Io { path, reason })?;
    if folder.join("adapter_model.bin").exists()
        && !folder.join("adapter_model.safetensors").exists()
    {
        return Err(Error::unsupported(
            folder,
            "adapter_model.bin (save it as safetensors)",
        ));
    }
    let tensors = SharedBytes::map_file(&folder.join("adapter_model.safetensors"))?;
    let name = folder
        .file_name()
        .map_or_else(|| "adapter".into(), |n| n.to_string_lossy().into_owned());
    from_bytes(&name, folder, &config, tensors, base, precision)
}

/// Reads a PEFT adapter from the bytes of its two files; `path` names it in errors.
///
/// # Errors
/// A file is malformed, the kind is not supported, or a tensor fits no place of the model (both shapes are named).
pub fn from_bytes(
    name: &str,
    path: &Path,
    config: &[u8],
    tensors: SharedBytes,
    base: &Base<'_>,
    precision: Precision,
) -> Result<SlotData> {
    let config = Config::parse(&path.join("adapter_config.json"), config)?;
    let path = path.join("adapter_model.safetensors");
    let tensors = from_safetensors(&path, &tensors)?;
    let mut assembly = Assembly::new(*base, &path, &config);
    assembly.read(Modules::sort(tensors))?;
    assembly.finish(name, precision)
}
