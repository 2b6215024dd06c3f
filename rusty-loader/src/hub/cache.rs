//! The hub's cache layout: `models--OWNER--NAME/{refs,blobs,snapshots/COMMIT,.no_exist/COMMIT}`, snapshots being
//! links to blobs that are named by their digests, `.no_exist` holding an empty file for what is known to be
//! absent.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::listing::{BESIDE_WEIGHTS, INDEX, RemoteFile, WEIGHTS};
use super::model_id::ModelId;
use crate::gguf::split::{is_later_part, parts};

/// One repository's folder.
pub(super) struct Repository {
    folder: PathBuf,
    locks: PathBuf,
}

/// A model in the cache.
pub(super) struct Found {
    pub path: PathBuf,
    pub commit: String,
    /// Nothing that the repository may hold beside the weights is missing.
    pub whole: bool,
}

impl Repository {
    pub fn new(cache: &Path, id: &ModelId) -> Self {
        let name = format!("models--{}--{}", id.owner, id.name);
        Self {
            folder: cache.join(&name),
            locks: cache.join(".locks").join(name),
        }
    }

    /// The model of a revision, where its weights are here: the GGUF file, or the folder of a checkpoint.
    pub fn find(&self, id: &ModelId) -> Option<Found> {
        let commit = self.commit(id);
        let snapshot = self.snapshot(&commit);
        let (path, whole) = match &id.file {
            Some(file) => (Some(snapshot.join(file)).filter(|p| all_parts(p))?, true),
            None if is_checkpoint(&snapshot) => {
                let absent = self.folder.join(".no_exist").join(&commit);
                let known =
                    |name: &&str| snapshot.join(name).exists() || absent.join(name).exists();
                let whole = BESIDE_WEIGHTS.iter().all(known);
                (snapshot, whole)
            }
            None => match &gguf_files(&snapshot)[..] {
                [only] if all_parts(only) => (only.clone(), true),
                _ => return None,
            },
        };
        Some(Found {
            path,
            commit,
            whole,
        })
    }

    /// The GGUF files of a revision that are here, as the repository names them.
    pub fn gguf_names(&self, id: &ModelId) -> Vec<String> {
        let snapshot = self.snapshot(&self.commit(id));
        let files = gguf_files(&snapshot).into_iter();
        let name = |path: PathBuf| {
            let name = path.strip_prefix(&snapshot).ok()?;
            Some(name.to_string_lossy().replace('\\', "/"))
        };
        let mut names: Vec<String> = files.filter_map(name).collect();
        names.sort();
        names
    }

    fn commit(&self, id: &ModelId) -> String {
        match fs::read_to_string(self.folder.join("refs").join(&id.revision)) {
            Ok(commit) => commit.trim().to_string(),
            // A revision may be a commit itself.
            Err(_) => id.revision.clone(),
        }
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// The name of the blob that has a file's content, where it is here already.
    pub fn blob_of(&self, file: &RemoteFile) -> Option<String> {
        let blobs = self.folder.join("blobs");
        let fits = |name: &String| {
            let size = fs::metadata(blobs.join(name)).map(|m| m.len());
            size.is_ok_and(|size| size == file.size) && file.checksum.accepts(name, file.size)
        };
        let recorded = file.checksum.recorded().to_string();
        if fits(&recorded) {
            return Some(recorded);
        }
        let entries = fs::read_dir(&blobs).ok()?.flatten();
        let mut names = entries.filter_map(|e| e.file_name().into_string().ok());
        names.find(|name| name.len() == 64 && fits(name))
    }

    /// Where a file's content is gathered until it is complete.
    pub fn partial(&self, file: &RemoteFile) -> io::Result<PathBuf> {
        let name = format!("{}.incomplete", file.checksum.recorded());
        let path = self.folder.join("blobs").join(name);
        create_parent(&path)?;
        Ok(path)
    }

    /// Keeps other processes from downloading the same file, until the result is dropped.
    pub fn lock(&self, file: &RemoteFile) -> io::Result<File> {
        let path = self
            .locks
            .join(format!("{}.lock", file.checksum.recorded()));
        create_parent(&path)?;
        let lock = File::create(path)?;
        match lock.lock() {
            // Some network file systems have no locks.
            Err(e) if e.kind() != io::ErrorKind::Unsupported => Err(e),
            _ => Ok(lock),
        }
    }

    /// Makes complete content a blob.
    pub fn keep(&self, partial: &Path, blob: &str) -> io::Result<()> {
        fs::rename(partial, self.folder.join("blobs").join(blob))
    }

    /// Makes a blob appear as `file` in a commit's snapshot.
    ///
    /// The name never goes missing while it is replaced: other callers may be at the same file.
    pub fn link(&self, commit: &str, file: &str, blob: &str) -> io::Result<()> {
        static LINKS: AtomicU64 = AtomicU64::new(0);
        let link = self.snapshot(commit).join(file);
        create_parent(&link)?;
        let serial = LINKS.fetch_add(1, Ordering::Relaxed);
        let new = link.with_file_name(format!(".link-{}-{serial}", std::process::id()));
        #[cfg(unix)]
        {
            let up = "../".repeat(2 + file.matches('/').count());
            std::os::unix::fs::symlink(format!("{up}blobs/{blob}"), &new)?;
        }
        // Links to files need privileges on Windows; a second name for the same bytes does not.
        #[cfg(not(unix))]
        {
            let blob = self.folder.join("blobs").join(blob);
            fs::hard_link(&blob, &new).or_else(|_| fs::copy(blob, &new).map(|_| ()))?;
        }
        fs::rename(new, link)
    }

    /// Remembers which commit a revision is.
    pub fn set_revision(&self, revision: &str, commit: &str) -> io::Result<()> {
        let path = self.folder.join("refs").join(revision);
        create_parent(&path)?;
        fs::write(path, commit)
    }

    /// Remembers that a commit has no such file.
    pub fn set_absent(&self, commit: &str, file: &str) -> io::Result<()> {
        let path = self.folder.join(".no_exist").join(commit).join(file);
        create_parent(&path)?;
        fs::write(path, b"")
    }
}

fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Whether a folder holds a configuration and all weights that its index names.
fn is_checkpoint(folder: &Path) -> bool {
    if !folder.join("config.json").is_file() {
        return false;
    }
    if folder.join(WEIGHTS).is_file() {
        return true;
    }
    let shards = fs::read(folder.join(INDEX)).ok().and_then(|b| shards(&b));
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
    (!names.is_empty()).then_some(names)
}

/// Whether a file is here, with all parts of a model in several.
fn all_parts(path: &Path) -> bool {
    let is_file = |name: String| Path::new(&name).is_file();
    path.to_str()
        .is_some_and(|path| parts(path).into_iter().all(is_file))
}

/// The GGUF files in a folder and those below, of a model in several the first.
fn gguf_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|e| e.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "gguf")
                && path.is_file()
                && !path.to_str().is_some_and(is_later_part)
            {
                found.push(path);
            }
        }
    }
    found
}
