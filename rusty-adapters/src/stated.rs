//! What an adapter's file says of itself, read without a model: for people, who have several. Packed files hold what was made of an
//! adapter, and state neither its kind nor its alpha.

use crate::gguf::{alpha, text};
use crate::packed::is_packed;
use crate::{Error, Result};
use rusty_loader::gguf::Gguf;
use serde_json::{Map, Value};
use std::path::Path;

/// See the module head.
#[derive(Clone, Debug, PartialEq)]
pub struct Stated {
    /// Kind of adapter, as people call it: `LoRA`, `DoRA`, `IA3`; PEFT's word where it is not known.
    pub kind: String,
    /// Alpha, which over the rank is the factor of a low rank; none where the file states none.
    pub alpha: Option<f64>,
    /// The model for which it was made, by the name that the file states.
    pub base_model: Option<String>,
}

impl Stated {
    /// What a PEFT folder, a LoRA GGUF or a packed file states.
    ///
    /// # Errors
    /// The file is missing or malformed.
    pub fn read(path: &Path) -> Result<Self> {
        if is_packed(path) {
            return Ok(Self {
                kind: "packed".into(),
                alpha: None,
                base_model: None,
            });
        }
        if path.is_file() {
            let file = Gguf::open(path)?;
            let kind = match text(&file, "adapter.type") {
                None | Some("lora") => "LoRA",
                Some(other) => other,
            };
            return Ok(Self {
                kind: kind.into(),
                alpha: alpha(&file, path)?,
                base_model: text(&file, "general.base_model.0.name").map(Into::into),
            });
        }
        let path = path.join("adapter_config.json");
        match std::fs::read(&path) {
            Ok(bytes) => Self::of_config(&path, &bytes),
            Err(reason) => Err(Error::Io { path, reason }),
        }
    }

    /// What the bytes of an `adapter_config.json` state; `path` names it in errors.
    ///
    /// # Errors
    /// They are no JSON object.
    pub fn of_config(path: &Path, bytes: &[u8]) -> Result<Self> {
        let json: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|e| Error::malformed(path, e.to_string()))?;
        let word = |key: &str| json.get(key).and_then(Value::as_str);
        let is_set = |key: &str| json.get(key).and_then(Value::as_bool) == Some(true);
        let kind = match word("peft_type").unwrap_or_default() {
            "LORA" => match (is_set("use_dora"), is_set("use_rslora")) {
                (false, false) => "LoRA",
                (false, true) => "rsLoRA",
                (true, false) => "DoRA",
                (true, true) => "DoRA with rsLoRA's scale",
            },
            "LOHA" => "LoHa",
            "LOKR" => "LoKr",
            "VERA" => "VeRA",
            "PROMPT_TUNING" => "prompt tuning",
            "P_TUNING" => "p-tuning",
            "PREFIX_TUNING" => "prefix tuning",
            other => other,
        };
        let alpha = json.get("lora_alpha").or_else(|| json.get("alpha"));
        Ok(Self {
            kind: kind.into(),
            alpha: alpha.and_then(Value::as_f64),
            base_model: word("base_model_name_or_path").map(Into::into),
        })
    }
}
