//! Reading JSON files of a checkpoint, bounded, and turning their values into metadata.

use std::path::Path;

use serde_json::Value;

use crate::{Error, Meta, Result};

/// Larger than any configuration or index.
const MAX_BYTES: u64 = 64 << 20;

pub(super) fn read_json(path: &Path) -> Result<Value> {
    let len = std::fs::metadata(path)
        .map_err(|e| Error::io(path, e))?
        .len();
    if len > MAX_BYTES {
        let reason = format!("{len} bytes; a JSON file here has at most {MAX_BYTES}");
        return Err(Error::malformed(path, reason));
    }
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    serde_json::from_slice(&bytes).map_err(|e| Error::malformed(path, format!("not JSON: {e}")))
}

/// As [`read_json`], `None` where there is no such file.
pub(super) fn read_json_if_there(path: &Path) -> Result<Option<Value>> {
    path.is_file().then(|| read_json(path)).transpose()
}

/// Scalars and arrays of them; `null` and objects have no counterpart.
pub(super) fn to_meta(value: &Value) -> Option<Meta> {
    match value {
        Value::Bool(v) => Some(Meta::Bool(*v)),
        Value::String(v) => Some(Meta::from(v.as_str())),
        Value::Number(v) => {
            let whole = v
                .as_u64()
                .map(Meta::U64)
                .or_else(|| v.as_i64().map(Meta::I64));
            whole.or_else(|| v.as_f64().map(Meta::F64))
        }
        Value::Array(items) => items.iter().map(to_meta).collect(),
        Value::Null | Value::Object(_) => None,
    }
}
