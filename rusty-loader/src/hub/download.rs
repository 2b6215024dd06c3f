//! Downloading what a model needs, piece by piece, checked before it counts.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use hf_hub::repository::RepoTreeEntry;
use hf_hub::{HFClient, HFRepositorySync, RepoTypeModel};
use sha2::{Digest, Sha256};

use super::cache::{Repository, create_parent, shards};
use super::model_id::ModelId;
use super::{Hub, Progress};

/// Files beside the weights of a checkpoint, where the repository has them.
const BESIDE_WEIGHTS: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "added_tokens.json",
];
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Times that a piece is asked for before the download gives up.
const ATTEMPTS: usize = 3;

type Done<T> = Result<T, String>;

struct Download<'a> {
    remote: HFRepositorySync<RepoTypeModel>,
    local: &'a Repository,
    revision: &'a str,
    piece_bytes: u64,
    progress: &'a dyn Fn(&Progress),
}

/// Downloads a model into the cache. `Err` says what happened and what to do.
pub(super) fn download(
    hub: &Hub,
    id: &ModelId,
    local: &Repository,
    progress: &dyn Fn(&Progress),
) -> Done<()> {
    let mut builder = HFClient::builder();
    if let Some(endpoint) = &hub.endpoint {
        builder = builder.endpoint(endpoint);
    }
    if let Some(token) = &hub.token {
        builder = builder.token(token);
    }
    let client = builder.build_sync().map_err(|e| e.to_string())?;
    let download = Download {
        remote: client.model(&id.owner, &id.name),
        local,
        revision: &id.revision,
        piece_bytes: hub.piece_bytes.max(1),
        progress,
    };
    let files = download.list()?;
    let mut commit = None;
    for file in wanted(&files, id)? {
        commit = Some(download.file(file)?);
        if file == INDEX {
            for shard in download.shards(commit.as_deref().unwrap_or_default())? {
                download.file(&shard)?;
            }
        }
    }
    let commit = commit.ok_or("has no files")?;
    local
        .set_revision(&id.revision, &commit)
        .map_err(|e| format!("cannot be entered into the cache: {e}"))
}

/// The files of a repository that make the model.
fn wanted<'f>(files: &'f [String], id: &ModelId) -> Done<Vec<&'f str>> {
    let has = |name: &str| files.iter().map(String::as_str).find(|f| *f == name);
    if let Some(file) = &id.file {
        return Ok(vec![
            has(file).ok_or_else(|| format!("has no file '{file}'"))?,
        ]);
    }
    if has("config.json").is_some()
        && let Some(weights) = has(WEIGHTS).or(has(INDEX))
    {
        let beside = BESIDE_WEIGHTS.iter().filter_map(|name| has(name));
        return Ok(beside.chain([weights]).collect());
    }
    let gguf: Vec<&str> = files
        .iter()
        .map(String::as_str)
        .filter(|f| f.ends_with(".gguf"))
        .collect();
    match gguf[..] {
        [only] => Ok(vec![only]),
        [] => Err("has neither safetensors with a config.json nor a GGUF file".into()),
        _ => Err(format!(
            "has {} GGUF files; name one as {}/{}:FILE: {}",
            gguf.len(),
            id.owner,
            id.name,
            gguf.join(", ")
        )),
    }
}

impl Download<'_> {
    fn list(&self) -> Done<Vec<String>> {
        let tree = self
            .remote
            .list_tree()
            .revision(self.revision)
            .recursive(true)
            .send();
        let tree = tree.map_err(|e| explain(&e))?;
        Ok(tree
            .into_iter()
            .filter_map(|entry| match entry {
                RepoTreeEntry::File { path, .. } => Some(path),
                RepoTreeEntry::Directory { .. } => None,
            })
            .collect())
    }

    fn shards(&self, commit: &str) -> Done<Vec<String>> {
        let index = self.local.snapshot(commit).join(INDEX);
        let bytes = std::fs::read(&index).map_err(|e| format!("{}: {e}", index.display()))?;
        let shards = shards(&bytes).ok_or_else(|| format!("{INDEX} has no usable weight_map"))?;
        // Names come from the network; they must not lead out of the snapshot.
        match shards
            .iter()
            .find(|s| s.contains('/') || s.contains('\\') || s.starts_with('.'))
        {
            Some(shard) => Err(format!(
                "{INDEX} names a shard '{shard}', which is no plain file name"
            )),
            None => Ok(shards),
        }
    }

    /// Downloads one file and returns the commit it belongs to.
    fn file(&self, name: &str) -> Done<String> {
        let meta = self
            .remote
            .get_file_metadata()
            .filepath(name)
            .revision(self.revision)
            .send();
        let meta = meta.map_err(|e| explain(&e))?;
        let plain = |word: &str| {
            !word.is_empty()
                && word
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
        };
        if !plain(&meta.etag) || !plain(&meta.commit_hash) {
            return Err(format!("{name}: the server's etag or commit is malformed"));
        }
        let failed = |e: std::io::Error| format!("{name}: {e}");
        let blob = self.local.blob(&meta.etag);
        if !blob.is_file() {
            create_parent(&blob).map_err(failed)?;
            let partial = blob.with_extension("incomplete");
            let part = OpenOptions::new()
                .append(true)
                .create(true)
                .open(&partial)
                .map_err(failed)?;
            // Another process that downloads the same file appends to it under the same lock.
            part.lock().map_err(failed)?;
            if !blob.is_file() {
                self.pieces(name, part, meta.file_size)?;
                verify(&partial, name, &meta.etag, meta.file_size)?;
                std::fs::rename(&partial, &blob).map_err(failed)?;
            }
        }
        self.local
            .link(&meta.commit_hash, name, &meta.etag)
            .map_err(failed)?;
        Ok(meta.commit_hash)
    }

    /// Appends what is missing.
    fn pieces(&self, name: &str, mut part: File, total: u64) -> Done<()> {
        let mut done = part.metadata().map_err(|e| format!("{name}: {e}"))?.len();
        while done < total {
            let end = (done + self.piece_bytes).min(total);
            let piece = self.piece(name, done..end)?;
            part.write_all(&piece).map_err(|e| format!("{name}: {e}"))?;
            done = end;
            (self.progress)(&Progress {
                file: name.into(),
                done,
                total,
            });
        }
        part.sync_all().map_err(|e| format!("{name}: {e}"))
    }

    fn piece(&self, name: &str, range: std::ops::Range<u64>) -> Done<Vec<u8>> {
        let mut failure = String::new();
        for attempt in 1..=ATTEMPTS {
            let request = self
                .remote
                .download_file_to_bytes()
                .filename(name)
                .revision(self.revision);
            match request.range(range.clone()).send() {
                Ok(bytes) if bytes.len() as u64 == range.end - range.start => {
                    return Ok(bytes.to_vec());
                }
                Ok(bytes) => failure = format!("{} bytes came for {range:?}", bytes.len()),
                Err(error) => failure = explain(&error),
            }
            tracing::warn!("{name}, attempt {attempt} of {ATTEMPTS}: {failure}");
        }
        Err(format!(
            "{name}: {failure}; run the command again to go on at byte {}",
            range.start
        ))
    }
}

/// Compares a finished file with what the server says it is; a file that is not that is removed.
fn verify(path: &Path, name: &str, etag: &str, size: u64) -> Done<()> {
    let check = || -> std::io::Result<Option<String>> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() != size {
            return Ok(Some(format!(
                "has {} bytes instead of {size}",
                file.metadata()?.len()
            )));
        }
        // Etags of files in large-file storage are their SHA-256; others are git's object ids.
        if etag.len() != 64 {
            return Ok(None);
        }
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n => hash.update(&buffer[..n]),
            }
        }
        let have: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        let wrong = !have.eq_ignore_ascii_case(etag);
        Ok(wrong.then(|| format!("has SHA-256 {have} instead of {etag}")))
    };
    match check() {
        Ok(None) => Ok(()),
        Ok(Some(wrong)) => {
            let removed = std::fs::remove_file(path);
            removed.map_err(|e| format!("{name} {wrong}, and cannot be removed: {e}"))?;
            Err(format!(
                "{name} {wrong}; it was removed, run the command again"
            ))
        }
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// An error of the hub's client with what to do about it.
fn explain(error: &hf_hub::HFError) -> String {
    use hf_hub::HFError as E;
    const NO_TOKEN: &str = "; set HF_TOKEN to a token that may read it";
    const NO_ACCESS: &str = "; ask for access on the model's page, then set HF_TOKEN";
    const NO_MODEL: &str = "; check the id and the revision, or set HF_TOKEN if it is private";
    let hint = match error {
        E::AuthRequired { .. } => NO_TOKEN,
        E::Forbidden { .. } => NO_ACCESS,
        E::RepoNotFound { .. } | E::RevisionNotFound { .. } => NO_MODEL,
        E::Http { context } => match context.status.as_u16() {
            401 => NO_TOKEN,
            403 => NO_ACCESS,
            404 => NO_MODEL,
            _ => "; try again later",
        },
        _ => "; check the connection and HF_ENDPOINT",
    };
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text + hint
}
