//! The hub's cache layout: `models--OWNER--NAME/{refs,blobs,snapshots/COMMIT}`, snapshots being links to blobs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::model_id::ModelId;

/// One repository's folder.
pub(super) struct Repository {
    folder: PathBuf,
}

impl Repository {
    pub fn new(cache: &Path, id: &ModelId) -> Self {
        Self {
            folder: cache.join(format!("models--{}--{}", id.owner, id.name)),
        }
    }

    /// The model of a revision, where all of it is here: the GGUF file, or the folder of a checkpoint.
    pub fn find(&self, id: &ModelId) -> Option<PathBuf> {
        let commit = match fs::read_to_string(self.folder.join("refs").join(&id.revision)) {
            Ok(commit) => commit.trim().to_string(),
            // A revision may be a commit itself.
            Err(_) => id.revision.clone(),
        };
        let snapshot = self.snapshot(&commit);
        match &id.file {
            Some(file) => Some(snapshot.join(file)).filter(|path| path.is_file()),
            None if is_checkpoint(&snapshot) => Some(snapshot),
            None => lone_gguf(&snapshot),
        }
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Where a file's content belongs, by its etag.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Remembers which commit a revision is.
    pub fn set_revision(&self, revision: &str, commit: &str) -> io::Result<()> {
        let path = self.folder.join("refs").join(revision);
        create_parent(&path)?;
        fs::write(path, commit)
    }

    /// Makes a blob appear as `file` in a commit's snapshot.
    pub fn link(&self, commit: &str, file: &str, etag: &str) -> io::Result<()> {
        let link = self.snapshot(commit).join(file);
        create_parent(&link)?;
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link)?;
        }
        #[cfg(unix)]
        {
            let up = "../".repeat(2 + file.matches('/').count());
            std::os::unix::fs::symlink(format!("{up}blobs/{etag}"), link)
        }
        #[cfg(not(unix))]
        fs::copy(self.blob(etag), link).map(|_| ())
    }
}

pub(super) fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Whether a folder holds a configuration and all weights that its index names.
fn is_checkpoint(folder: &Path) -> bool {
    if !folder.join("config.json").is_file() {
        return false;
    }
    if folder.join("model.safetensors").is_file() {
        return true;
    }
    let index = fs::read(folder.join("model.safetensors.index.json"));
    let shards = index.ok().and_then(|bytes| shards(&bytes));
    shards.is_some_and(|shards| shards.iter().all(|shard| folder.join(shard).is_file()))
}

/// The files that an index names.
pub(super) fn shards(index: &[u8]) -> Option<Vec<String>> {
    let index: serde_json::Value = serde_json::from_slice(index).ok()?;
    let map = index.get("weight_map")?.as_object()?;
    let names = map.values().map(|v| v.as_str().map(str::to_string));
    let mut names: Vec<String> = names.collect::<Option<_>>()?;
    names.sort();
    names.dedup();
    Some(names)
}

fn lone_gguf(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|e| e.path());
    let mut files = files.filter(|p| p.extension().is_some_and(|e| e == "gguf") && p.is_file());
    let first = files.next()?;
    files.next().is_none().then_some(first)
}
