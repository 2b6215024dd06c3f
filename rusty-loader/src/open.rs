//! From a path to a model.

use std::path::{Path, PathBuf};

use crate::gguf::model as gguf;
use crate::gguf::split::is_later_part;
use crate::meta::keys;
use crate::{Error, Meta, ModelFile, Result, SharedBytes, safetensors};

/// Kinds of rotary scaling.
const ROPE_KINDS: [&str; 8] = [
    "none", "default", "linear", "dynamic", "ntk", "yarn", "llama3", "longrope",
];

/// Opens a GGUF file (of several, as `gguf-split` writes them, the first), a safetensors file with its `config.json`
/// beside it, a checkpoint folder, or a folder with one GGUF model.
///
/// Files are mapped; tensor bytes are read only where no view can show a weight (quantized checkpoints, joined matrices
/// of latent attention, norms stored less one). Little else is allocated beyond metadata and vocabulary.
///
/// # Errors
/// Names the file and what is wrong with it: unreadable, malformed, not supported, or with sizes and tensors
/// that contradict each other.
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn ModelFile>> {
    let path = path.as_ref();
    let file = open_any_rope(path)?;
    match file.meta(keys::ROPE_SCALING_TYPE).and_then(Meta::as_str) {
        Some(kind) if !ROPE_KINDS.contains(&kind) => Err(Error::unsupported(
            path,
            format!("rope scaling '{kind}'"),
            format!(
                "known ones are {}; --rope-scaling chooses one instead",
                ROPE_KINDS.join(", ")
            ),
        )),
        _ => Ok(file),
    }
}

/// The same whatever rotary scaling the file asks for: for whoever chooses one instead, see
/// [`RopeOverride`](crate::rope_override::RopeOverride).
///
/// # Errors
/// As [`open`].
pub fn open_any_rope(path: impl AsRef<Path>) -> Result<Box<dyn ModelFile>> {
    let path = model_path(path.as_ref())?;
    let ending = path.extension();
    match path.is_dir() || ending.is_some_and(|e| e.eq_ignore_ascii_case("safetensors")) {
        true => Ok(Box::new(safetensors::open(&path)?)),
        false => Ok(Box::new(gguf::open(&path)?)),
    }
}

/// What is opened at a path: of a folder with one GGUF model that file (of several the first), else the path itself.
///
/// # Errors
/// There is nothing, or a folder without a model.
pub fn model_path(path: &Path) -> Result<PathBuf> {
    let kind = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
    if !kind.is_dir() || path.join("config.json").exists() {
        return Ok(path.into());
    }
    lone_gguf(path)?.ok_or_else(|| {
        let reason = "is no model folder: it holds neither config.json nor exactly one GGUF file";
        Error::malformed(path, reason)
    })
}

/// The files that a path stands for where it is read: itself, all in a folder, all beside a checkpoint's tensors, and all parts of a model
/// in several.
pub fn files_at(path: &Path) -> Vec<PathBuf> {
    let folder = match path.extension() {
        Some(ending) if ending == "safetensors" => path.parent(),
        _ => Some(path),
    };
    let inside = folder.into_iter().flat_map(std::fs::read_dir).flatten();
    let inside = inside.flatten().map(|entry| entry.path());
    let parts = path.to_str().map(crate::gguf::split::parts);
    let parts = parts.into_iter().flatten().map(PathBuf::from);
    [path.into()]
        .into_iter()
        .chain(parts)
        .chain(inside)
        .collect()
}

/// Opens a GGUF model from bytes at hand (for example compiled into the program); `label` names it.
///
/// # Errors
/// As [`open`].
pub fn open_gguf_bytes(label: &str, bytes: SharedBytes) -> Result<Box<dyn ModelFile>> {
    Ok(Box::new(gguf::from_bytes(Path::new(label), bytes)?))
}

/// The only GGUF file of a folder, or the first one of the only model in several.
fn lone_gguf(folder: &Path) -> Result<Option<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))?;
    let is_gguf = |p: &PathBuf| {
        let later = p.to_str().is_some_and(is_later_part);
        let extension = p.extension();
        extension.is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && !later
    };
    let mut files = entries.flatten().map(|e| e.path()).filter(is_gguf);
    let first = files.next();
    Ok(first.filter(|_| files.next().is_none()))
}
