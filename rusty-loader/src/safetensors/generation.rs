//! What a checkpoint folder says about generating: end and begin ids, sampling defaults, chat template.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::json::{read_json_if_there, to_meta};
use crate::meta::keys;
use crate::{Error, Meta, Result};

/// Adds the canonical generation keys of a folder; `generation_config.json` overrides `config.json`.
pub(super) fn canonical(folder: &Path, meta: &mut HashMap<String, Meta>) -> Result<()> {
    let generation = read_json_if_there(&folder.join("generation_config.json"))?;
    for (key, value) in generation.iter().filter_map(Value::as_object).flatten() {
        if let Some(value) = to_meta(value) {
            meta.insert(format!("generation.{key}"), value);
        }
    }
    let stated = |meta: &HashMap<String, Meta>, key: &str| {
        let of = |prefix: &str| meta.get(&format!("{prefix}.{key}")).cloned();
        of("generation").or_else(|| of("hf"))
    };
    let ends = match stated(meta, "eos_token_id") {
        Some(Meta::Array(ids)) => ids
            .iter()
            .filter(|id| id.as_u64().is_some())
            .cloned()
            .collect(),
        Some(id) if id.as_u64().is_some() => [id].into_iter().collect(),
        _ => Meta::Array([].into()),
    };
    meta.insert(keys::EOS_TOKEN_IDS.to_owned(), ends);
    if let Some(id) = stated(meta, "bos_token_id").filter(|id| id.as_u64().is_some()) {
        meta.insert(keys::BOS_TOKEN_ID.to_owned(), id);
    }
    let tokenizer = read_json_if_there(&folder.join("tokenizer_config.json"))?;
    let of_tokenizer = |key: &str| tokenizer.as_ref()?.get(key);
    let template = match template_file(folder)? {
        Some(text) => Some(text),
        None => of_tokenizer("chat_template").and_then(default_template),
    };
    if let Some(text) = template {
        meta.insert(keys::CHAT_TEMPLATE.to_owned(), text.as_str().into());
    }
    Ok(())
}

fn template_file(folder: &Path) -> Result<Option<String>> {
    let path = folder.join("chat_template.jinja");
    if path.is_file() {
        let text = std::fs::read_to_string(&path).map_err(|e| Error::io(&path, e))?;
        return Ok(Some(text));
    }
    let json = read_json_if_there(&folder.join("chat_template.json"))?;
    Ok(json.and_then(|j| default_template(j.get("chat_template")?)))
}

/// A template, or of several named ones the default.
fn default_template(value: &Value) -> Option<String> {
    let named = |v: &&Value| v.get("name").and_then(Value::as_str) == Some("default");
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(all) => all
            .iter()
            .find(named)
            .or_else(|| all.first())
            .and_then(|v| Some(v.get("template")?.as_str()?.to_owned())),
        _ => None,
    }
}
