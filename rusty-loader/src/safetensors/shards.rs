//! The weights of a checkpoint folder: one file, or an index over several.

use std::collections::HashMap;
use std::path::{Component, Path};

use serde_json::Value;

use super::SafetensorsFile;
use super::file::Stored;
use super::json::read_json;
use crate::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// All tensors under their names in the files, in a stable order.
pub(super) fn weights(folder: &Path) -> Result<Vec<(String, Stored)>> {
    let single = folder.join(SINGLE);
    if single.is_file() {
        return all_of(&single);
    }
    let index = folder.join(INDEX);
    if index.is_file() {
        return indexed(folder, &index);
    }
    let reason = format!("no weights: neither {SINGLE} nor {INDEX} is in the folder");
    Err(Error::malformed(folder, reason))
}

/// All tensors of one file.
pub(super) fn all_of(path: &Path) -> Result<Vec<(String, Stored)>> {
    let file = SafetensorsFile::open(path)?;
    let view = |name: &str| Ok((name.to_owned(), file.stored(name)?));
    file.names()
        .filter(|name| is_weight(name))
        .map(view)
        .collect()
}

fn indexed(folder: &Path, index: &Path) -> Result<Vec<(String, Stored)>> {
    let json = read_json(index)?;
    let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
        return Err(Error::malformed(index, "weight_map is not an object"));
    };
    let mut files: HashMap<&str, SafetensorsFile> = HashMap::new();
    let mut weights = Vec::with_capacity(map.len());
    for (name, shard) in map.iter().filter(|(name, _)| is_weight(name)) {
        let Some(shard) = shard.as_str().filter(|s| stays_inside(s)) else {
            let reason =
                format!("the shard of '{name}' is {shard}; it must be a file inside the folder");
            return Err(Error::malformed(index, reason));
        };
        if !files.contains_key(shard) {
            files.insert(shard, SafetensorsFile::open(&folder.join(shard))?);
        }
        weights.push((name.clone(), files[shard].stored(name)?));
    }
    Ok(weights)
}

/// Old checkpoints store the rotary frequencies, which follow from the configuration.
fn is_weight(name: &str) -> bool {
    !name.ends_with("rotary_emb.inv_freq")
}

fn stays_inside(shard: &str) -> bool {
    let mut parts = Path::new(shard).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}
