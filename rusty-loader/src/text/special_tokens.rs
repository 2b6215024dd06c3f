//! The tokens that a model expects around a text, as a post-processor of the `tokenizers` crate, and what a
//! `tokenizer_config.json` says of them.

use serde_json::{Value, json};

/// The post-processor that puts these tokens, each with its id, around a text; null where there are none.
pub(super) fn around(begin: Option<(u32, String)>, end: Option<(u32, String)>) -> Value {
    if begin.is_none() && end.is_none() {
        return Value::Null;
    }
    let special = |(_, text): &(u32, String)| json!({"SpecialToken": {"id": text, "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let single = begin.iter().map(special).chain([text]);
    let single: Vec<Value> = single.chain(end.iter().map(special)).collect();
    let specials: serde_json::Map<String, Value> = begin
        .into_iter()
        .chain(end)
        .map(|(id, text)| {
            let token = json!({"id": text, "ids": [id], "tokens": [text]});
            (text, token)
        })
        .collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": specials})
}

/// What a `tokenizer_config.json` says of a special token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Named {
    /// Nothing.
    #[default]
    Nowhere,
    /// There is none.
    Null,
    /// Its text.
    Text(String),
}

impl Named {
    pub(super) fn new(config: &Value, key: &str) -> Self {
        let Some(value) = config.get(key) else {
            return Self::Nowhere;
        };
        let text = value.as_str().or_else(|| value["content"].as_str());
        text.map_or(Self::Null, |text| Self::Text(text.to_string()))
    }
}

/// Whether a text begins and ends with those, where the configuration decides that and not `tokenizer.json`: for the
/// classes of transformers that make their post-processor anew from these flags (`update_post_processor`).
pub(super) fn added(config: &Value) -> Option<(bool, bool)> {
    let class = config["tokenizer_class"].as_str()?;
    let class = class.strip_suffix("Fast").unwrap_or(class);
    if !["LlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"].contains(&class) {
        return None;
    }
    let flag = |key: &str, omitted| config[key].as_bool().unwrap_or(omitted);
    Some((flag("add_bos_token", true), flag("add_eos_token", false)))
}
