//! Rotary parameters: `rope_parameters` (current), or `rope_theta` + `rope_scaling` with `rope_type` or
//! `type` (older checkpoints).

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::json::to_meta;
use crate::meta::keys;
use crate::{Error, Meta, Result};

const RENAMED: &[(&str, &str)] = &[
    ("rope_theta", keys::ROPE_FREQ_BASE),
    ("factor", keys::ROPE_SCALING_FACTOR),
    (
        "original_max_position_embeddings",
        keys::ROPE_SCALING_ORIGINAL_CONTEXT,
    ),
    ("attention_factor", keys::ROPE_SCALING_ATTN_FACTOR),
    ("beta_fast", keys::ROPE_SCALING_BETA_FAST),
    ("beta_slow", keys::ROPE_SCALING_BETA_SLOW),
    ("truncate", keys::ROPE_SCALING_TRUNCATE),
    ("mscale", keys::ROPE_SCALING_MSCALE),
    ("mscale_all_dim", keys::ROPE_SCALING_MSCALE_ALL_DIM),
    ("low_freq_factor", keys::ROPE_SCALING_LOW_FREQ_FACTOR),
    ("high_freq_factor", keys::ROPE_SCALING_HIGH_FREQ_FACTOR),
    ("short_factor", keys::ROPE_SCALING_SHORT_FACTOR),
    ("long_factor", keys::ROPE_SCALING_LONG_FACTOR),
];

/// Adds the canonical rotary keys of a configuration.
pub(super) fn canonical(
    path: &Path,
    config: &Value,
    meta: &mut HashMap<String, Meta>,
) -> Result<()> {
    let parameters = parameters(path, config, meta)?;
    for (from, to) in RENAMED {
        if let Some(value) = parameters.get(*from).and_then(to_meta) {
            meta.insert((*to).to_owned(), value);
        }
    }
    let kind = kind(path, &parameters)?;
    meta.insert(keys::ROPE_SCALING_TYPE.to_owned(), kind.into());
    if kind == "yarn" {
        attention_factor(meta);
    }
    rotated_dims(path, &parameters, meta)
}

/// The parameters of full attention, and the base frequency of sliding layers where that is another.
fn parameters(
    path: &Path,
    config: &Value,
    meta: &mut HashMap<String, Meta>,
) -> Result<Map<String, Value>> {
    let object = |key: &str| match config.get(key) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map.clone()),
        Some(_) => Err(Error::malformed(path, format!("{key} is not an object"))),
    };
    let mut found = object("rope_parameters")?;
    let of_sliding = found
        .get("sliding_attention")
        .and_then(|s| s.get("rope_theta"));
    let swa_base = of_sliding.or_else(|| config.get("rope_local_base_freq"));
    if let Some(base) = swa_base.and_then(to_meta) {
        meta.insert(keys::ROPE_FREQ_BASE_SWA.to_owned(), base);
    }
    if let Some(Value::Object(full)) = found.remove("full_attention") {
        found = full;
    }
    for (key, value) in object("rope_scaling")? {
        found.entry(key).or_insert(value);
    }
    for key in [
        "rope_theta",
        "partial_rotary_factor",
        "original_max_position_embeddings",
    ] {
        if let Some(value) = config.get(key).filter(|v| !v.is_null()) {
            found.entry(key).or_insert_with(|| value.clone());
        }
    }
    Ok(found)
}

/// The canonical kind. One that is not known is passed on: whoever reads it refuses it, unless the user chose another.
fn kind<'a>(path: &Path, parameters: &'a Map<String, Value>) -> Result<&'a str> {
    let stated = parameters
        .get("rope_type")
        .or_else(|| parameters.get("type"));
    match stated {
        None | Some(Value::Null) => Ok("none"),
        Some(Value::String(kind)) => match kind.as_str() {
            "default" | "none" => Ok("none"),
            "linear" => Ok("linear"),
            "dynamic" | "ntk" => Ok("dynamic"),
            "yarn" => Ok("yarn"),
            "llama3" => Ok("llama3"),
            "longrope" | "su" => Ok("longrope"),
            other => Ok(other),
        },
        Some(other) => Err(Error::malformed(
            path,
            format!("rope type is {other}, not text"),
        )),
    }
}

/// DeepSeek's spelling of YaRN's attention factor: the ratio of two mscales (arXiv 2309.00071, and
/// `_compute_yarn_parameters` in transformers).
fn attention_factor(meta: &mut HashMap<String, Meta>) {
    let float = |key: &str| meta.get(key).and_then(Meta::as_f64);
    let (Some(factor), Some(mscale), Some(all), None) = (
        float(keys::ROPE_SCALING_FACTOR),
        float(keys::ROPE_SCALING_MSCALE),
        float(keys::ROPE_SCALING_MSCALE_ALL_DIM),
        float(keys::ROPE_SCALING_ATTN_FACTOR),
    ) else {
        return;
    };
    let of = |mscale: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * mscale * factor.ln() + 1.0
        }
    };
    let ratio = Meta::F64(of(mscale) / of(all));
    meta.insert(keys::ROPE_SCALING_ATTN_FACTOR.to_owned(), ratio);
}

fn rotated_dims(
    path: &Path,
    parameters: &Map<String, Value>,
    meta: &mut HashMap<String, Meta>,
) -> Result<()> {
    let share = match parameters.get("partial_rotary_factor").map(Value::as_f64) {
        None => return Ok(()),
        Some(Some(share)) if share > 0.0 && share <= 1.0 => share,
        Some(_) => {
            let reason = "partial_rotary_factor must lie between 0 and 1";
            return Err(Error::malformed(path, reason));
        }
    };
    let size = |key: &str| meta.get(key).and_then(Meta::as_u64);
    let head = size(keys::KEY_LENGTH)
        .or_else(|| size(keys::EMBEDDING_LENGTH)?.checked_div(size(keys::HEAD_COUNT)?));
    if let Some(head) = head {
        let dims = Meta::U64((head as f64 * share) as u64);
        meta.insert(keys::ROPE_DIMENSION_COUNT.to_owned(), dims);
    }
    Ok(())
}
