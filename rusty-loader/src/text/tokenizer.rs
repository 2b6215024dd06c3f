//! Text to token ids and back.

use super::gguf_vocab::{self, Source};
use crate::gguf::Gguf;
use crate::meta::keys;
use crate::{Error, Meta, ModelFile, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A vocabulary with its rules, from either kind of file. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    path: PathBuf,
    eos: Vec<u32>,
    bos: Option<u32>,
}

impl Tokenizer {
    /// Opens a folder with a `tokenizer.json`, that file itself, or a GGUF (which may hold a vocabulary only).
    ///
    /// # Errors
    /// The file cannot be read, or holds no usable tokenizer.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::from_folder(path);
        }
        if path
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("json"))
        {
            return Self::from_json(path, vec![], None);
        }
        let container = Gguf::open(path)?;
        let get = |key: &str| container.meta.get(key);
        let token = |key: &str| {
            get(key)
                .and_then(Meta::as_u64)
                .and_then(|v| v.try_into().ok())
        };
        let eos = token("tokenizer.ggml.eos_token_id").into_iter().collect();
        let bos = token("tokenizer.ggml.bos_token_id");
        Self::from_gguf(
            &Source {
                label: &path.display().to_string(),
                get: &get,
            },
            eos,
            bos,
        )
    }

    /// Reads `tokenizer.json` in a folder, and the end and begin tokens beside it.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let mut tokenizer = Self::from_json(&path, vec![], None)?;
        let config = folder.join("tokenizer_config.json");
        if config.exists() {
            let text = read(&config)?;
            let value: serde_json::Value =
                serde_json::from_slice(&text).map_err(|e| Error::Malformed {
                    path: config,
                    reason: e.to_string(),
                })?;
            tokenizer.eos = tokenizer.named(&value["eos_token"]).into_iter().collect();
            tokenizer.bos = tokenizer.named(&value["bos_token"]);
        }
        Ok(tokenizer)
    }

    /// The tokenizer of an opened model: the vocabulary inside a GGUF, or the `tokenizer.json` in a folder.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn from_model(file: &dyn ModelFile) -> Result<Self> {
        let eos = file
            .meta(keys::EOS_TOKEN_IDS)
            .and_then(Meta::as_array)
            .unwrap_or_default();
        let eos: Vec<u32> = eos
            .iter()
            .filter_map(|m| m.as_u64().and_then(|v| v.try_into().ok()))
            .collect();
        let bos = file
            .meta(keys::BOS_TOKEN_ID)
            .and_then(Meta::as_u64)
            .and_then(|v| v.try_into().ok());
        let label = Path::new(file.label());
        if file.meta("tokenizer.ggml.tokens").is_none() {
            let mut tokenizer = Self::from_folder(label)?;
            if !eos.is_empty() {
                tokenizer.eos = eos;
            }
            tokenizer.bos = bos.or(tokenizer.bos);
            return Ok(tokenizer);
        }
        Self::from_gguf(
            &Source {
                label: file.label(),
                get: &|key| file.meta(key),
            },
            eos,
            bos,
        )
    }

    fn from_gguf<'a>(source: &'a Source<'a>, eos: Vec<u32>, bos: Option<u32>) -> Result<Self> {
        let json = gguf_vocab::description(source)?;
        Self::from_bytes(
            Path::new(source.label),
            json.to_string().as_bytes(),
            eos,
            bos,
        )
    }

    fn from_json(path: &Path, eos: Vec<u32>, bos: Option<u32>) -> Result<Self> {
        Self::from_bytes(path, &read(path)?, eos, bos)
    }

    fn from_bytes(path: &Path, json: &[u8], eos: Vec<u32>, bos: Option<u32>) -> Result<Self> {
        let unusable = |e: &dyn std::fmt::Display| Error::Malformed {
            path: path.into(),
            reason: format!("no usable tokenizer: {e}"),
        };
        serde_json::from_slice::<Parts>(json).map_err(|e| unusable(&e))?;
        let built = || tokenizers::Tokenizer::from_bytes(json);
        let inner = std::panic::catch_unwind(built)
            .map_err(|_| unusable(&"one of its parts is malformed"))?
            .map_err(|e| unusable(&e))?;
        Ok(Self {
            inner: Arc::new(inner),
            path: path.into(),
            eos,
            bos,
        })
    }

    /// The id of a token named in a `tokenizer_config.json`: a string, or an object with `content`.
    fn named(&self, value: &serde_json::Value) -> Option<u32> {
        let text = value.as_str().or_else(|| value["content"].as_str())?;
        self.token_id(text)
    }

    /// Token ids of a text. Special tokens written in the text are recognised; those that the model expects
    /// around a text are added where `add_special` says so.
    ///
    /// # Errors
    /// The tokenizer cannot express the text (a vocabulary without bytes or an unknown token).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = self
            .inner
            .encode(text, add_special)
            .map_err(|e| self.failed("encode", &e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of token ids; ids outside the vocabulary are left out.
    ///
    /// # Errors
    /// The decoder's rules cannot be applied.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.inner
            .decode(ids, skip_special)
            .map_err(|e| self.failed("decode", &e))
    }

    /// Entries of the vocabulary, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The id of a token's exact text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The stored text of a token (byte-level vocabularies spell bytes as letters).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Tokens that end a generation.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    /// The token that begins a text.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// A detokenizer for tokens that come one by one.
    pub fn stream(&self, skip_special: bool) -> TokenStream {
        TokenStream {
            inner: self.inner.clone(),
            skip_special,
            ids: Vec::new(),
            prefix: String::new(),
            prefix_index: 0,
        }
    }

    fn failed(&self, what: &str, error: &dyn std::fmt::Display) -> Error {
        Error::Malformed {
            path: self.path.clone(),
            reason: format!("cannot {what}: {error}"),
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Tokenizer({}, {} tokens)",
            self.path.display(),
            self.vocab_size()
        )
    }
}

/// Parts of a description in which the `tokenizers` crate panics where the text stops being JSON; reading them
/// first gives an error instead. It panics on some well-formed contents too (a character map of no use).
#[derive(serde::Deserialize)]
#[allow(dead_code)]
struct Parts {
    #[serde(default)]
    normalizer: serde_json::Value,
    #[serde(default)]
    decoder: serde_json::Value,
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|reason| Error::Io {
        path: path.into(),
        reason,
    })
}

/// Turns tokens that come one by one into text that is always whole characters; an incomplete character at the
/// end is held back until its bytes are there.
pub struct TokenStream {
    inner: Arc<tokenizers::Tokenizer>,
    skip_special: bool,
    ids: Vec<u32>,
    prefix: String,
    prefix_index: usize,
}

impl TokenStream {
    /// The text that this token completes, or `None` while nothing is complete.
    ///
    /// # Errors
    /// The decoder's rules cannot be applied.
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        tokenizers::tokenizer::step_decode_stream(
            &*self.inner,
            vec![id],
            self.skip_special,
            &mut self.ids,
            &mut self.prefix,
            &mut self.prefix_index,
        )
        .map_err(|e| Error::Malformed {
            path: "token stream".into(),
            reason: e.to_string(),
        })
    }
}
