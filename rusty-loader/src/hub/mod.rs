//! From what a user calls a model to a path: a file, a folder, or a model of the Hugging Face hub.
//!
//! A hub id (`owner/name`, with `@revision` and, for repositories of several GGUF files, `:FILE`) is looked up
//! in the local cache first, in the layout that all of the hub's clients share. Only what is not there is
//! downloaded, in pieces, so that a cut download goes on where it ended; each file is checked against the
//! server's SHA-256 (or, for small files outside large-file storage, its size) before it enters the cache.
//!
//! `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean to the hub's
//! other clients.

mod cache;
mod download;
mod model_id;

use std::path::{Path, PathBuf};

use crate::{Error, Result};
use model_id::ModelId;

/// How far the download of a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The file, as the repository names it.
    pub file: String,
    /// Bytes that are here.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Where models come from and where they are kept.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Server; `None`: `HF_ENDPOINT` or the public hub.
    pub endpoint: Option<String>,
    /// Access token; `None`: `HF_TOKEN` or the token file, where there is one.
    pub token: Option<String>,
    /// Cache folder; `None`: `HF_HUB_CACHE`, `HF_HOME/hub` or `~/.cache/huggingface/hub`.
    pub cache: Option<PathBuf>,
    /// Use the cache only.
    pub offline: bool,
    /// Bytes asked for at once; what a cut connection loses at most.
    pub piece_bytes: u64,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            endpoint: None,
            token: None,
            cache: None,
            offline: false,
            piece_bytes: 16 << 20,
        }
    }
}

impl Hub {
    /// As the environment states it.
    pub fn from_env() -> Self {
        let set = |v: String| !matches!(v.as_str(), "" | "0" | "false" | "False" | "no" | "off");
        Self {
            offline: std::env::var("HF_HUB_OFFLINE").is_ok_and(set),
            ..Self::default()
        }
    }

    /// The path of a model: `model` itself where it exists, else a hub id's snapshot folder or GGUF file in the
    /// cache, downloaded where it is not there. `progress` is told after every piece.
    ///
    /// # Errors
    /// [`Error::Hub`] naming the model and what to do: no such path or id, no access, a cut connection, a file
    /// whose checksum is wrong.
    pub fn resolve(&self, model: &str, progress: &dyn Fn(&Progress)) -> Result<PathBuf> {
        if Path::new(model).exists() {
            return Ok(model.into());
        }
        let id = ModelId::parse(model).map_err(|reason| hub_error(model, reason))?;
        let folder = self.cache.clone().unwrap_or_else(hf_hub::resolve_cache_dir);
        let cache = cache::Repository::new(&folder, &id);
        if let Some(path) = cache.find(&id) {
            return Ok(path);
        }
        if self.offline {
            let folder = folder.display();
            return Err(hub_error(
                model,
                format!(
                    "is not in the cache ({folder}), and HF_HUB_OFFLINE forbids to download it"
                ),
            ));
        }
        download::download(self, &id, &cache, progress)
            .map_err(|reason| hub_error(model, reason))?;
        cache.find(&id).ok_or_else(|| {
            hub_error(
                model,
                "was downloaded, but holds no model that can be opened",
            )
        })
    }
}

/// [`Hub::resolve`] with the environment's settings.
///
/// # Errors
/// As there.
pub fn resolve(model: &str, progress: &dyn Fn(&Progress)) -> Result<PathBuf> {
    Hub::from_env().resolve(model, progress)
}

fn hub_error(model: &str, reason: impl Into<String>) -> Error {
    Error::Hub {
        model: model.into(),
        reason: reason.into(),
    }
}
