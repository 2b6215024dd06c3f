//! Text to token ids and back.

use super::gguf_vocab::{self, Source};
use super::special_tokens::{self, Named};
use crate::gguf::Gguf;
use crate::meta::keys;
use crate::{Error, Meta, ModelFile, Result};
use serde_json::Value;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::PostProcessorWrapper;
use tokenizers::tokenizer::DecodeStreamError;

/// A vocabulary with its rules, from either kind of file. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    path: PathBuf,
    eos: Vec<u32>,
    bos: Option<u32>,
    /// What templates call those, where that is not their texts.
    named_eos: Named,
    named_bos: Named,
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

    /// Reads `tokenizer.json` in a folder, and what `tokenizer_config.json` beside it says of end and begin tokens.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let mut tokenizer = Self::from_json(&path, vec![], None)?;
        let config = folder.join("tokenizer_config.json");
        if config.exists() {
            let text = read(&config)?;
            let config: Value = serde_json::from_slice(&text).map_err(|e| Error::Malformed {
                path: config,
                reason: e.to_string(),
            })?;
            tokenizer.configure(&config)?;
        }
        Ok(tokenizer)
    }

    fn configure(&mut self, config: &Value) -> Result<()> {
        self.named_bos = Named::new(config, "bos_token");
        self.named_eos = Named::new(config, "eos_token");
        let token = |named: &Named| match named {
            Named::Text(text) => Some((self.token_id(text)?, text.clone())),
            Named::Nowhere | Named::Null => None,
        };
        let (bos, eos) = (token(&self.named_bos), token(&self.named_eos));
        self.bos = bos.as_ref().map(|(id, _)| *id);
        self.eos = eos.iter().map(|(id, _)| *id).collect();
        let Some((begin, end)) = special_tokens::added(config) else {
            return Ok(());
        };
        // What is to be added, but named nowhere here, is what `tokenizer.json` adds.
        let known = |added: bool, token: &Option<_>, named: &Named| {
            !added || token.is_some() || *named == Named::Null
        };
        match known(begin, &bos, &self.named_bos) && known(end, &eos, &self.named_eos) {
            true => self.put_around(bos.filter(|_| begin), eos.filter(|_| end)),
            false => Ok(()),
        }
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

    /// Has texts begin and end with these tokens, and with no others.
    fn put_around(
        &mut self,
        begin: Option<(u32, String)>,
        end: Option<(u32, String)>,
    ) -> Result<()> {
        let around = special_tokens::around(begin, end);
        let around: Option<PostProcessorWrapper> =
            serde_json::from_value(around).map_err(|e| self.failed("add special tokens", &e))?;
        Arc::make_mut(&mut self.inner).with_post_processor(around);
        Ok(())
    }

    fn from_gguf<'a>(source: &'a Source<'a>, eos: Vec<u32>, bos: Option<u32>) -> Result<Self> {
        let described = gguf_vocab::description(source)?;
        let path = Path::new(source.label);
        let json = described.json.to_string();
        Self::from_parts(path, json.as_bytes(), eos, bos, |tokenizer| {
            if let Some(model) = described.model {
                tokenizer.with_model(model);
            }
            tokenizer.add_tokens(described.added)
        })
    }

    fn from_json(path: &Path, eos: Vec<u32>, bos: Option<u32>) -> Result<Self> {
        Self::from_parts(path, &read(path)?, eos, bos, |_| Ok(0))
    }

    /// What is described, and what `fill` puts in.
    fn from_parts(
        path: &Path,
        json: &[u8],
        eos: Vec<u32>,
        bos: Option<u32>,
        fill: impl FnOnce(&mut tokenizers::Tokenizer) -> tokenizers::Result<usize>,
    ) -> Result<Self> {
        let unusable = |e: &dyn std::fmt::Display| Error::Malformed {
            path: path.into(),
            reason: format!("no usable tokenizer: {e}"),
        };
        serde_json::from_slice::<Parts>(json).map_err(|e| unusable(&e))?;
        let built = || {
            let mut tokenizer = tokenizers::Tokenizer::from_bytes(json)?;
            fill(&mut tokenizer)?;
            Ok::<_, tokenizers::Error>(tokenizer)
        };
        let inner = std::panic::catch_unwind(AssertUnwindSafe(built))
            .map_err(|_| unusable(&"one of its parts is malformed"))?
            .map_err(|e| unusable(&e))?;
        Ok(Self {
            inner: Arc::new(inner),
            path: path.into(),
            eos,
            bos,
            named_eos: Named::default(),
            named_bos: Named::default(),
        })
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

    /// What chat templates call `eos_token`.
    pub fn eos_token(&self) -> Option<String> {
        match &self.named_eos {
            Named::Text(text) => Some(text.clone()),
            Named::Null => None,
            Named::Nowhere => self.id_to_token(*self.eos.first()?),
        }
    }

    /// What chat templates call `bos_token`.
    pub fn bos_token(&self) -> Option<String> {
        match &self.named_bos {
            Named::Text(text) => Some(text.clone()),
            Named::Null => None,
            Named::Nowhere => self.id_to_token(self.bos?),
        }
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
    normalizer: Value,
    #[serde(default)]
    decoder: Value,
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|reason| Error::Io {
        path: path.into(),
        reason,
    })
}

fn stream_error(error: &dyn std::fmt::Display) -> Error {
    Error::Malformed {
        path: "token stream".into(),
        reason: error.to_string(),
    }
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
        let pushed = tokenizers::tokenizer::step_decode_stream(
            &*self.inner,
            vec![id],
            self.skip_special,
            &mut self.ids,
            &mut self.prefix,
            &mut self.prefix_index,
        );
        match pushed {
            Err(e) if e.is::<DecodeStreamError>() => self.restart().map(Some),
            pushed => pushed.map_err(|e| stream_error(&e)),
        }
    }

    /// Text that was given out reads otherwise beside what came after: bytes of a fallback are no character together.
    /// Goes on with the tokens whose text was not given out, read by themselves.
    fn restart(&mut self) -> Result<String> {
        self.ids.drain(..self.prefix_index.min(self.ids.len()));
        self.prefix = self.decoded()?;
        self.prefix_index = self.ids.len();
        Ok(self.prefix.clone())
    }

    /// The text that is held back because its last character is not whole, with a replacement for that. Afterwards the
    /// stream begins anew.
    ///
    /// # Errors
    /// As [`TokenStream::push`].
    pub fn finish(&mut self) -> Result<String> {
        let text = self.decoded()?;
        let rest = match text.strip_prefix(self.prefix.as_str()) {
            Some(rest) => rest.to_string(),
            None => self.restart()?,
        };
        self.ids.clear();
        self.prefix.clear();
        self.prefix_index = 0;
        Ok(rest)
    }

    fn decoded(&self) -> Result<String> {
        let decoded = self.inner.decode(&self.ids, self.skip_special);
        decoded.map_err(|e| stream_error(&e))
    }
}
