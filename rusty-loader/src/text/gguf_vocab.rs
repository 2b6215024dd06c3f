//! The vocabulary inside a GGUF, stated as the description (`tokenizer.json`) that the `tokenizers` crate reads, but for tokens and
//! merges, of which there are hundreds of thousands: those it is given as they are.
//!
//! Three kinds: `gpt2` (byte-level BPE with a pre-tokenizer named by a word), `llama` (SentencePiece BPE, whose
//! merges follow from the scores) and `t5` (unigram). Keys are documented in ggml's `docs/gguf.md`.

use super::{pre_tokenizers, special_tokens};
use crate::{Error, Meta, Result};
use serde_json::{Value, json};
use std::collections::HashMap;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

/// Values of `tokenizer.ggml.token_type`.
mod kind {
    pub const UNKNOWN: u64 = 2;
    pub const CONTROL: u64 = 3;
    pub const USER_DEFINED: u64 = 4;
    pub const BYTE: u64 = 6;
}

/// Bytes of a token that merges may build. SentencePiece's own limit is 16 characters unless set otherwise; the
/// work is quadratic in this.
const MAX_MERGED: usize = 1024;

/// Where metadata is looked up: an opened model, or a container that holds nothing but a vocabulary.
pub(super) struct Source<'a> {
    /// File name for errors.
    pub label: &'a str,
    /// A value by its key.
    pub get: &'a dyn Fn(&str) -> Option<&'a Meta>,
}

impl<'a> Source<'a> {
    fn meta(&self, key: &str) -> Option<&'a Meta> {
        (self.get)(key)
    }
}

/// A file's vocabulary.
pub(super) struct Description {
    /// All but what follows; its model has nothing in it where there is another.
    pub json: Value,
    /// Byte pairs with their tokens.
    pub model: Option<BPE>,
    /// Tokens that are found in texts as they are, in the order of their ids.
    pub added: Vec<AddedToken>,
}

/// The description of the file's vocabulary.
pub(super) fn description<'a>(source: &'a Source<'a>) -> Result<Description> {
    let vocabulary = Vocabulary::read(source)?;
    let model = source.meta("tokenizer.ggml.model");
    match model.and_then(Meta::as_str) {
        Some("gpt2") => vocabulary.byte_level(),
        Some("llama") => vocabulary.sentencepiece_bpe(),
        Some("t5") => vocabulary.unigram(),
        _ => Err(Error::Unsupported {
            path: source.label.into(),
            what: format!(
                "tokenizer model {}",
                model.map_or("none".into(), Meta::to_string)
            ),
            hint: "known ones are gpt2, llama and t5".into(),
        }),
    }
}

struct Vocabulary<'a> {
    source: &'a Source<'a>,
    tokens: Vec<&'a str>,
    kinds: Vec<u64>,
    scores: Vec<f64>,
}

impl<'a> Vocabulary<'a> {
    fn read(source: &'a Source<'a>) -> Result<Self> {
        let bad = |reason: String| Error::Malformed {
            path: source.label.into(),
            reason,
        };
        let array = |key: &str| source.meta(key).and_then(Meta::as_array);
        let tokens = array("tokenizer.ggml.tokens").ok_or_else(|| bad("no vocabulary".into()))?;
        let tokens: Option<Vec<&str>> = tokens.iter().map(Meta::as_str).collect();
        let tokens = tokens.ok_or_else(|| bad("a token is not text".into()))?;
        let kinds = array("tokenizer.ggml.token_type").unwrap_or_default();
        let scores = array("tokenizer.ggml.scores").unwrap_or_default();
        for (what, len) in [("token types", kinds.len()), ("scores", scores.len())] {
            if len != 0 && len != tokens.len() {
                return Err(bad(format!("{len} {what} for {} tokens", tokens.len())));
            }
        }
        Ok(Self {
            source,
            kinds: kinds.iter().map(|m| m.as_u64().unwrap_or(1)).collect(),
            scores: scores.iter().map(|m| m.as_f64().unwrap_or(0.0)).collect(),
            tokens,
        })
    }

    fn kind(&self, id: usize) -> u64 {
        self.kinds.get(id).copied().unwrap_or(1)
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.source.meta(key).and_then(Meta::as_bool)
    }

    fn id(&self, key: &str) -> Option<usize> {
        let id = self.source.meta(key).and_then(Meta::as_u64)? as usize;
        (id < self.tokens.len()).then_some(id)
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        (0..self.tokens.len())
            .filter(|&id| {
                [kind::CONTROL, kind::USER_DEFINED, kind::UNKNOWN].contains(&self.kind(id))
                    && !self.tokens[id].is_empty()
            })
            .map(|id| {
                AddedToken::from(self.tokens[id], self.kind(id) != kind::USER_DEFINED)
                    .normalized(false)
            })
            .collect()
    }

    /// A model of byte pairs, `described` but for its tokens and merges.
    fn pairs(&self, described: &Value, merges: Merges) -> Result<BPE> {
        let flag = |key: &str| described[key].as_bool().unwrap_or(false);
        let ids = (0..).zip(&self.tokens);
        let vocab: Vocab = ids.map(|(id, t)| (t.to_string(), id)).collect();
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .fuse_unk(flag("fuse_unk"))
            .byte_fallback(flag("byte_fallback"))
            .ignore_merges(flag("ignore_merges"));
        if let Some(unknown) = described["unk_token"].as_str() {
            builder = builder.unk_token(unknown.into());
        }
        builder.build().map_err(|e| Error::Malformed {
            path: self.source.label.into(),
            reason: format!("no usable tokenizer: {e}"),
        })
    }

    /// What is described with a model of byte pairs, which is filled.
    fn with_pairs(&self, json: Value, merges: Merges) -> Result<Description> {
        Ok(Description {
            model: Some(self.pairs(&json["model"], merges)?),
            added: self.added_tokens(),
            json,
        })
    }

    /// Adds begin and end tokens where the file says so.
    fn post_processor(&self, begin: bool, end: bool) -> Value {
        let begin = self.flag("tokenizer.ggml.add_bos_token").unwrap_or(begin);
        let end = self.flag("tokenizer.ggml.add_eos_token").unwrap_or(end);
        let begin = begin
            .then(|| self.id("tokenizer.ggml.bos_token_id"))
            .flatten();
        let end = end
            .then(|| self.id("tokenizer.ggml.eos_token_id"))
            .flatten();
        let token = |id: usize| (id as u32, self.tokens[id].to_string());
        special_tokens::around(begin.map(token), end.map(token))
    }

    fn byte_level(&self) -> Result<Description> {
        let word = self
            .source
            .meta("tokenizer.ggml.pre")
            .and_then(Meta::as_str)
            .unwrap_or("default");
        let pre = pre_tokenizers::named(word).ok_or_else(|| Error::Unsupported {
            path: self.source.label.into(),
            what: format!("pre-tokenizer '{word}'"),
            hint: "use the checkpoint's tokenizer.json instead".into(),
        })?;
        let merges = self
            .source
            .meta("tokenizer.ggml.merges")
            .and_then(Meta::as_array)
            .unwrap_or_default();
        let lines = merges.iter().filter_map(Meta::as_str);
        let lines = lines.filter(|line| !line.starts_with("#version"));
        let merges = lines.map(|merge| {
            let mut parts = merge.split(' ');
            match (parts.next(), parts.next(), parts.next()) {
                (Some(left), Some(right), None) => Ok((left.into(), right.into())),
                _ => Err(Error::Malformed {
                    path: self.source.label.into(),
                    reason: format!("no usable tokenizer: '{merge}' is no merge of two tokens"),
                }),
            }
        });
        let merges = merges.collect::<Result<Merges>>()?;
        let mut steps: Vec<Value> = pre
            .patterns
            .iter()
            .map(|p| json!({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": false}))
            .collect();
        steps.push(json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
        }));
        let json = json!({
            "version": "1.0",
            "added_tokens": [],
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "post_processor": self.post_processor(pre.add_bos, false),
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE", "unk_token": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": pre.ignore_merges, "vocab": {}, "merges": [],
            },
        });
        self.with_pairs(json, merges)
    }

    /// SentencePiece's BPE joins the pair whose result has the best score; as merges, that is every split of
    /// every token into two others, best result first.
    fn sentencepiece_bpe(&self) -> Result<Description> {
        let ids: HashMap<&str, usize> = self
            .tokens
            .iter()
            .enumerate()
            .map(|(i, t)| (*t, i))
            .collect();
        let mut merges: Vec<(f64, usize, usize, usize)> = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            if self.kind(id) == kind::CONTROL
                || self.kind(id) == kind::BYTE
                || token.len() > MAX_MERGED
            {
                continue;
            }
            let score = self.scores.get(id).copied().unwrap_or(0.0);
            for (at, _) in token.char_indices().skip(1) {
                if let (Some(&a), Some(&b)) = (ids.get(&token[..at]), ids.get(&token[at..])) {
                    merges.push((score, id, a, b));
                }
            }
        }
        merges.sort_by(|x, y| {
            y.0.total_cmp(&x.0)
                .then(x.1.cmp(&y.1))
                .then((x.2, x.3).cmp(&(y.2, y.3)))
        });
        let merges: Merges = merges
            .iter()
            .map(|(_, _, a, b)| (self.tokens[*a].into(), self.tokens[*b].into()))
            .collect();
        let unknown = self
            .id("tokenizer.ggml.unknown_token_id")
            .map(|id| self.tokens[id]);
        let mut json = self.sentencepiece();
        json["model"] = json!({
            "type": "BPE", "unk_token": unknown, "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false, "vocab": {}, "merges": [],
        });
        self.with_pairs(json, merges)
    }

    fn unigram(&self) -> Result<Description> {
        let pieces: Vec<(&str, f64)> = self
            .tokens
            .iter()
            .enumerate()
            .map(|(id, t)| (*t, self.scores.get(id).copied().unwrap_or(0.0)))
            .collect();
        let mut json = self.sentencepiece();
        json["model"] = json!({
            "type": "Unigram", "unk_id": self.id("tokenizer.ggml.unknown_token_id"),
            "byte_fallback": (0..self.tokens.len()).any(|id| self.kind(id) == kind::BYTE), "vocab": pieces,
        });
        Ok(Description {
            json,
            model: None,
            added: self.added_tokens(),
        })
    }

    /// What SentencePiece vocabularies share: spaces as U+2581, one in front where the file says so.
    fn sentencepiece(&self) -> Value {
        let prefix = self.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        let mut normalizers = Vec::new();
        if prefix {
            normalizers.push(json!({"type": "Prepend", "prepend": "\u{2581}"}));
        }
        normalizers
            .push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}));
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        json!({
            "version": "1.0",
            "added_tokens": [],
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "post_processor": self.post_processor(true, false),
            "decoder": {"type": "Sequence", "decoders": decoders},
        })
    }
}
