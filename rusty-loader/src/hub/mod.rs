//! From what a user calls a model to a path: a file, a folder, or a model of the Hugging Face hub.
//!
//! A hub id (`owner/name`, with `@revision` and, for repositories of several GGUF files, `:FILE`) is looked up
//! in the local cache first, in the layout that all of the hub's clients share; a revision that is there is
//! used as it is, without asking whether the server has a newer one. Only what is missing is downloaded. A cut
//! download goes on where it ended, within a call and in the next one, and each file is checked against the
//! repository's own record of it (SHA-256 in large-file storage, git's object id for the rest) before it enters
//! the cache.
//!
//! `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean to the hub's
//! other clients.

mod cache;
mod checksum;
mod download;
mod listing;
mod model_id;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Result};
use model_id::ModelId;

/// How far the download of a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The file, as the repository names it.
    pub file: String,
    /// Bytes that are here, those of an earlier download included.
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
    /// Connections that may break per file before the download gives up.
    pub attempts: u32,
    /// Silence of the server after which a connection counts as broken.
    pub patience: Duration,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            endpoint: None,
            token: None,
            cache: None,
            offline: false,
            attempts: 6,
            patience: Duration::from_secs(60),
        }
    }
}

impl Hub {
    /// As the environment states it.
    pub fn from_env() -> Self {
        let set = |v: String| {
            !matches!(
                v.to_ascii_lowercase().as_str(),
                "" | "0" | "false" | "no" | "off"
            )
        };
        Self {
            offline: std::env::var("HF_HUB_OFFLINE").is_ok_and(set),
            ..Self::default()
        }
    }

    /// The path of a model: `model` itself where it exists, else a hub id's snapshot folder or GGUF file in the
    /// cache, downloaded where it is not there. `progress` is told as bytes come, at most once per MiB.
    ///
    /// # Errors
    /// [`Error::Hub`] naming the model, the server and what to do: no such path or id, no access, a cut
    /// connection, a file whose checksum is wrong.
    pub fn resolve(&self, model: &str, progress: &dyn Fn(&Progress)) -> Result<PathBuf> {
        if Path::new(model).exists() {
            return Ok(model.into());
        }
        let id = ModelId::parse(model).map_err(|reason| hub_error(model, reason))?;
        let folder = self.cache.clone().unwrap_or_else(hf_hub::resolve_cache_dir);
        let repository = cache::Repository::new(&folder, &id);
        let found = repository.find(&id);
        let commit = match found {
            Some(found) if found.whole || self.offline => return Ok(found.path),
            None if self.offline => {
                let reason = match &repository.gguf_names(&id)[..] {
                    names @ [_, _, ..] if id.file.is_none() => {
                        let names = names.join(", ");
                        format!(
                            "has several GGUF files in the cache; name one as {model}:FILE: {names}"
                        )
                    }
                    _ => format!(
                        "is not in the cache ({}), and HF_HUB_OFFLINE forbids to download it; unset it, or give \
                         the path of a model",
                        folder.display()
                    ),
                };
                return Err(hub_error(model, reason));
            }
            // What a file beside the weights adds must belong to the same commit.
            Some(ref found) => Some(found.commit.clone()),
            None => None,
        };
        if let Err(reason) = download::download(self, &id, commit, &repository, progress) {
            let Some(found) = found else {
                let reason =
                    format!("is no file or folder here, and as a model of the hub it {reason}");
                return Err(hub_error(model, reason));
            };
            tracing::warn!("{model}: files beside the weights may be missing: it {reason}");
            return Ok(found.path);
        }
        match repository.find(&id) {
            Some(found) => Ok(found.path),
            None => Err(hub_error(
                model,
                "was downloaded, but holds no model that can be opened",
            )),
        }
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

/// A server's address as it may be shown: `scheme://user:password@host` without what is in front of the host.
fn without_credentials(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let end = rest.find('/').unwrap_or(rest.len());
    let host = rest[..end].rfind('@').map_or(rest, |at| &rest[at + 1..]);
    match scheme {
        "" => host.into(),
        scheme => format!("{scheme}://{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::without_credentials;

    #[test]
    fn addresses_are_shown_without_passwords() {
        for (given, shown) in [
            ("https://huggingface.co", "https://huggingface.co"),
            ("http://a:b@c@host:1/x@y", "http://host:1/x@y"),
            ("user:word@host", "host"),
        ] {
            assert_eq!(without_credentials(given), shown);
        }
    }
}
