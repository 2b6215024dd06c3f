//! Prepared adapters on disk: what was read, converted and made relative to a model's weights once is mapped the next
//! time.
//!
//! An entry belongs to the adapter's files and the model's (their paths, sizes and times of change), the precision,
//! and the versions of the packed format and of what prepares. An entry that cannot be used, or whose checksums say that it was damaged, is made
//! anew; those that were used longest ago make room.

use crate::base_model::Base;
use crate::packed;
use crate::precision::Precision;
use crate::{Error, Result};
use rusty_compiler::SlotData;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How the names of entries end.
const ENDING: &str = ".adapter.safetensors";

/// Bytes that a cache may hold where nothing else is asked for.
const LIMIT: u64 = 4 << 30;

/// A folder of prepared adapters.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    limit: u64,
}

impl Cache {
    /// A cache in a folder, which is made with the first entry; it holds at most 4 GiB.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            limit: LIMIT,
        }
    }

    /// The same with another limit in bytes.
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Reads an adapter as [`crate::load`] does, from the cache where it was prepared before. What cannot be cached is
    /// read all the same.
    ///
    /// # Errors
    /// As [`crate::load`].
    pub fn load(&self, path: &Path, base: &Base<'_>, precision: Precision) -> Result<SlotData> {
        let Some(entry) = self.entry(path, base, precision) else {
            return crate::load(path, base, precision);
        };
        if entry.exists() {
            match packed::open_whole(&entry, base) {
                Ok(adapter) => {
                    touch(&entry);
                    return Ok(adapter);
                }
                Err(error) => tracing::warn!("{error}; it is made anew"),
            }
        }
        let adapter = crate::load(path, base, precision)?;
        match self.store(&adapter, base, &entry) {
            // The mapping takes the place of what was just made: memory that the system may take back.
            Ok(()) => Ok(packed::open(&entry, base).unwrap_or(adapter)),
            Err(error) => {
                tracing::warn!("the prepared adapter is not kept: {error}");
                Ok(adapter)
            }
        }
    }

    /// Where an adapter's entry is; none where its files tell no time.
    fn entry(&self, path: &Path, base: &Base<'_>, precision: Precision) -> Option<PathBuf> {
        if packed::is_packed(path) && precision == Precision::Stored {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (packed::VERSION, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        Stamp::of(path)?.hash(&mut hasher);
        base.graph.to_string().hash(&mut hasher);
        let label = base.file.map(|f| f.label().to_string());
        label.hash(&mut hasher);
        label
            .and_then(|l| Stamp::of(Path::new(&l)))
            .hash(&mut hasher);
        precision.hash(&mut hasher);
        let name = format!("{:016x}{ENDING}", hasher.finish());
        Some(self.folder.join(name))
    }

    fn store(&self, adapter: &SlotData, base: &Base<'_>, entry: &Path) -> Result<()> {
        let io = |reason| Error::Io {
            path: entry.into(),
            reason,
        };
        fs::create_dir_all(&self.folder).map_err(io)?;
        packed::pack(adapter, base, entry, false)?;
        self.shrink(entry);
        Ok(())
    }

    /// Removes the entries used longest ago but `keep` until the limit is kept.
    fn shrink(&self, keep: &Path) {
        let Ok(folder) = fs::read_dir(&self.folder) else {
            return;
        };
        let mut entries: Vec<(SystemTime, u64, PathBuf)> = folder
            .flatten()
            .filter(|e| is_entry(&e.path()))
            .filter_map(|e| {
                let meta = e.metadata().ok()?;
                Some((meta.modified().ok()?, meta.len(), e.path()))
            })
            .collect();
        entries.sort();
        let mut held: u64 = entries.iter().map(|(_, size, _)| size).sum();
        for (_, size, path) in entries {
            if held <= self.limit {
                return;
            }
            if path != keep && fs::remove_file(&path).is_ok() {
                held -= size;
            }
        }
    }
}

/// Makes an entry the newest, so that those make room which nobody asks for.
fn touch(entry: &Path) {
    let file = fs::File::options().append(true).open(entry);
    let touched = file.and_then(|file| file.set_modified(SystemTime::now()));
    if let Err(error) = touched {
        tracing::debug!("{}: {error}", entry.display());
    }
}

/// Whether a file is named as entries are; whatever else lies in the folder is somebody's own.
fn is_entry(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str());
    let stem = name.and_then(|n| n.strip_suffix(ENDING));
    stem.is_some_and(|s| s.len() == 16 && s.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Endings of the files that adapters and models are read from.
const READ: [&str; 3] = ["json", "safetensors", "gguf"];

/// What tells a file or folder from a changed one: paths, sizes and times of what it is read from. Other files that come
/// and go in a folder, and checkpoints in folders of their own, change nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(Vec<FileStamp>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FileStamp {
    path: PathBuf,
    size: u64,
    modified: SystemTime,
    /// When the system changed the file last, in seconds and nanoseconds, where it tells: nobody sets that time back.
    changed: Option<(i64, i64)>,
}

impl FileStamp {
    fn of(path: PathBuf) -> Option<Self> {
        let meta = fs::metadata(&path).ok()?;
        #[cfg(unix)]
        let changed = {
            use std::os::unix::fs::MetadataExt;
            Some((meta.ctime(), meta.ctime_nsec()))
        };
        #[cfg(not(unix))]
        let changed = None;
        Some(Self {
            size: meta.len(),
            modified: meta.modified().ok()?,
            changed,
            path,
        })
    }
}

impl Stamp {
    /// Whether what was at the path then holds what `other` saw: the same files, sizes and times of being written.
    pub fn same_content(&self, other: &Stamp) -> bool {
        let what = |f: &FileStamp| (f.path.clone(), f.size, f.modified);
        self.0.iter().map(what).eq(other.0.iter().map(what))
    }

    /// Of what is at a path now; none where there is nothing, or the system tells no times.
    pub fn of(path: &Path) -> Option<Self> {
        let path = fs::canonicalize(path).ok()?;
        if path.is_file() {
            return Some(Self(vec![FileStamp::of(path)?]));
        }
        let entries = fs::read_dir(&path).ok()?.flatten();
        let is_read = |path: &PathBuf| {
            let ending = path.extension().and_then(|e| e.to_str());
            ending.is_some_and(|e| READ.contains(&e)) && path.is_file()
        };
        let mut files: Vec<PathBuf> = entries.map(|e| e.path()).filter(is_read).collect();
        files.sort();
        let stamps = files.into_iter().map(FileStamp::of);
        stamps.collect::<Option<_>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let folder = tempfile::tempdir().expect("folder");
        let entries = ["0", "1", "2"].map(|name| {
            let path = folder.path().join(format!("{}{ENDING}", name.repeat(16)));
            fs::write(&path, [0; 100]).expect("written");
            path
        });
        for (age, path) in entries.iter().enumerate() {
            let file = fs::File::options().append(true).open(path).expect("there");
            let hours = Duration::from_secs(3600 * (3 - age as u64));
            let time = SystemTime::now() - hours;
            file.set_modified(time).expect("set");
        }
        touch(&entries[0]);
        let cache = Cache::new(folder.path()).with_limit(200);
        cache.shrink(&entries[2]);
        let left = entries.each_ref().map(|path| path.exists());
        assert_eq!(left, [true, false, true]);
    }

    #[test]
    fn a_folder_is_known_by_what_it_is_read_from() {
        let folder = tempfile::tempdir().expect("folder");
        let file = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("written");
        };
        let stamp = || Stamp::of(folder.path()).expect("there");
        file("adapter_config.json", "{}");
        file("adapter_model.safetensors", "weights");
        let first = stamp();
        file("README.md", "about it");
        fs::create_dir(folder.path().join("checkpoint-500")).expect("a folder");
        assert_eq!(stamp(), first);
        file("adapter_model.safetensors", "other weights");
        assert!(!stamp().same_content(&first));
    }
}
