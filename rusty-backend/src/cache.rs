//! The folder where compilations and what was found of devices are kept between processes. A cache: failures only cost time.

use std::path::PathBuf;

/// `RUSTY_CACHE`, else `rusty` in the user's cache folder; none where there is no home.
pub fn folder() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    if let Some(own) = from("RUSTY_CACHE") {
        return Some(own.into());
    }
    let cache = from("XDG_CACHE_HOME").map(PathBuf::from);
    let windows = || from("LOCALAPPDATA").map(PathBuf::from);
    let home = || from("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Some(cache.or_else(windows).or_else(home)?.join("rusty"))
}

/// What is kept under `name`, a relative path of `/` and plain words; none where the file is not as it was written, in part or
/// damaged: drivers read machine code without asking how long it is.
#[cfg(feature = "gpu")]
pub fn load(name: &str) -> Option<Vec<u8>> {
    sealed::opened(std::fs::read(folder()?.join(name)).ok()?)
}

/// Keeps `data` under `name`; readers see the old file or the new one, never a part.
#[cfg(feature = "gpu")]
pub fn store(name: &str, data: &[u8]) {
    let Some(folder) = folder() else { return };
    let path = folder.join(name);
    if let Err(error) = sealed::write(&path, data) {
        tracing::debug!("{} is not kept: {error}", path.display());
    }
}

/// Files with the SHA-256 of what they hold in front.
#[cfg(feature = "gpu")]
mod sealed {
    use sha2::{Digest, Sha256};
    use std::fs::{self, File};
    use std::io::{Result, Write};
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::SystemTime;

    /// Bytes of a checksum.
    const SUM: usize = 32;

    /// What a file's bytes hold, if they are as they were written.
    pub fn opened(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let (sum, data) = bytes.split_at_checked(SUM)?;
        let whole = Sha256::digest(data)[..] == *sum;
        whole.then(|| bytes.split_off(SUM))
    }

    /// Writes a file beside its place and moves it there.
    pub fn write(path: &Path, data: &[u8]) -> Result<()> {
        // Threads of a process may keep the same, and so may processes of one number in several containers.
        static PARTS: AtomicU64 = AtomicU64::new(0);
        let number = PARTS.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let own = format!("{}.{number}.{}.part", std::process::id(), now.as_nanos());
        let part = path.with_added_extension(own);
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        let mut file = File::create_new(&part)?;
        let sum = Sha256::digest(data);
        let written = file.write_all(&sum).and_then(|()| file.write_all(data));
        // Systems may refuse to move an open file.
        drop(file);
        let kept = written.and_then(|()| fs::rename(&part, path));
        kept.inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })
    }
}

#[cfg(all(test, feature = "gpu"))]
mod tests {
    use super::{folder, load, store};

    #[test]
    fn what_is_damaged_is_not_there() {
        let name = &format!("only-for-a-test-{}/kept", std::process::id());
        let path = folder().expect("a folder").join(name);
        let own = path.parent().expect("a folder");
        for data in [&b""[..], b"something", &[7; 100]] {
            store(name, data);
            assert_eq!(load(name).as_deref(), Some(data));
            let kept = std::fs::read(&path).expect("kept");
            for at in 0..kept.len() {
                let mut changed = kept.clone();
                changed[at] ^= 4;
                for damaged in [&changed[..], &kept[..at]] {
                    std::fs::write(&path, damaged).expect("written");
                    assert!(load(name).is_none(), "{at}");
                }
            }
            assert_eq!(std::fs::read_dir(own).expect("read").count(), 1, "parts");
        }
        std::fs::remove_dir_all(own).expect("removed");
    }
}
