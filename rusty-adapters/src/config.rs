//! `adapter_config.json`: the settings of a LoRA that its tensors do not show.

use crate::{Error, Result};
use regex::Regex;
use serde_json::{Map, Value};
use std::path::Path;

/// Ranks and scales by module.
#[derive(Debug)]
pub(crate) struct Config {
    rank: usize,
    alpha: f64,
    root: bool,
    rank_pattern: Vec<(Regex, f64)>,
    alpha_pattern: Vec<(Regex, f64)>,
    targets: Targets,
}

/// Which modules the adapter changes.
#[derive(Debug)]
enum Targets {
    /// All linear layers, or what the tensors show.
    All,
    /// Modules whose names end with one of these.
    Ends(Vec<String>),
    /// Modules whose whole names match.
    Expression(Regex),
}

impl Targets {
    fn parse(value: Option<&Value>) -> Result<Self, String> {
        match value {
            None | Some(Value::Null) => Ok(Targets::All),
            Some(Value::String(word)) if word == "all-linear" => Ok(Targets::All),
            Some(Value::String(pattern)) => Regex::new(&format!("^(?:{pattern})$"))
                .map(Targets::Expression)
                .map_err(|e| format!("'target_modules' is no expression: {e}")),
            Some(Value::Array(items)) => {
                let names = items.iter().map(|i| i.as_str().map(str::to_string));
                let names = names.collect::<Option<_>>();
                names
                    .map(Targets::Ends)
                    .ok_or_else(|| "'target_modules' holds what is no name".into())
            }
            Some(_) => Err("'target_modules' is neither a list nor an expression".into()),
        }
    }
}

impl Config {
    /// Reads the file; what is not plain LoRA is refused.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let malformed = |reason: String| Error::Malformed {
            path: path.into(),
            reason,
        };
        let json: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
        let kind = json
            .get("peft_type")
            .and_then(Value::as_str)
            .ok_or_else(|| malformed("'peft_type' is missing".into()))?;
        if kind != "LORA" {
            return Err(Error::Unsupported {
                path: path.into(),
                what: format!("adapter kind {kind}"),
            });
        }
        let is_set = |key: &str| match json.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(fields)) => !fields.is_empty(),
            Some(_) => true,
        };
        for key in [
            "use_dora",
            "lora_bias",
            "modules_to_save",
            "layer_replication",
            "target_parameters",
        ] {
            if is_set(key) {
                return Err(Error::Unsupported {
                    path: path.into(),
                    what: format!("'{key}'"),
                });
            }
        }
        if json
            .get("bias")
            .and_then(Value::as_str)
            .is_some_and(|b| b != "none")
        {
            return Err(Error::Unsupported {
                path: path.into(),
                what: "'bias'".into(),
            });
        }
        let rank = json
            .get("r")
            .and_then(Value::as_u64)
            .filter(|r| (1..=4096).contains(r));
        let rank = rank.ok_or_else(|| malformed("'r' is not a rank from 1 to 4096".into()))?;
        let alpha = json
            .get("lora_alpha")
            .and_then(Value::as_f64)
            .filter(|a| a.is_finite());
        Ok(Self {
            rank: rank as usize,
            alpha: alpha.ok_or_else(|| malformed("'lora_alpha' is not a number".into()))?,
            root: is_set("use_rslora"),
            rank_pattern: patterns(path, json.get("rank_pattern"))?,
            alpha_pattern: patterns(path, json.get("alpha_pattern"))?,
            targets: Targets::parse(json.get("target_modules")).map_err(malformed)?,
        })
    }

    /// Whether the configuration states that a module is changed; `module` is its name in the checkpoint.
    pub fn changes(&self, module: &str) -> bool {
        let ends = |name: &String| {
            let rest = module.strip_suffix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        match &self.targets {
            Targets::All => true,
            Targets::Ends(names) => names.iter().any(ends),
            Targets::Expression(pattern) => pattern.is_match(module),
        }
    }

    /// The rank at a module.
    pub fn rank(&self, module: &str) -> usize {
        matched(&self.rank_pattern, module).map_or(self.rank, |r| r as usize)
    }

    /// The factor on `B A` at a module: `alpha / r`, or `alpha / sqrt(r)` for rsLoRA.
    pub fn scale(&self, module: &str) -> f32 {
        let rank = self.rank(module) as f64;
        let alpha = matched(&self.alpha_pattern, module).unwrap_or(self.alpha);
        (alpha / if self.root { rank.sqrt() } else { rank }) as f32
    }
}

fn matched(patterns: &[(Regex, f64)], module: &str) -> Option<f64> {
    patterns
        .iter()
        .find(|(pattern, _)| pattern.is_match(module))
        .map(|(_, value)| *value)
}

/// PEFT matches a pattern against the end of a module's name: `(.*\.)?(PATTERN)$`.
fn patterns(path: &Path, value: Option<&Value>) -> Result<Vec<(Regex, f64)>> {
    let malformed = |reason: String| Error::Malformed {
        path: path.into(),
        reason,
    };
    let Some(Value::Object(fields)) = value else {
        return Ok(vec![]);
    };
    fields
        .iter()
        .map(|(pattern, value)| {
            let regex = Regex::new(&format!(r"^(.*\.)?({pattern})$"))
                .map_err(|e| malformed(format!("pattern '{pattern}': {e}")))?;
            let value = value.as_f64().filter(|v| *v > 0.0 && v.is_finite());
            Ok((
                regex,
                value.ok_or_else(|| {
                    malformed(format!("pattern '{pattern}' has no positive value"))
                })?,
            ))
        })
        .collect()
}
