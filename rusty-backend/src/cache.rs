//! The folder where compilations and what was found of devices are kept between processes. A cache: failures only cost time.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// What is kept under `name`, a relative path of `/` and plain words.
pub fn load(name: &str) -> Option<Vec<u8>> {
    fs::read(folder()?.join(name)).ok()
}

/// Keeps `data` under `name`; readers see the old file or the new one, never a part.
pub fn store(name: &str, data: &[u8]) {
    let Some(folder) = folder() else { return };
    let path = folder.join(name);
    // Threads of one process may keep the same.
    static PARTS: AtomicU64 = AtomicU64::new(0);
    let number = PARTS.fetch_add(1, Ordering::Relaxed);
    let part = folder.join(format!("{name}.{}.{number}", std::process::id()));
    let kept = fs::create_dir_all(path.parent().unwrap_or(&folder))
        .and_then(|()| fs::write(&part, data))
        .and_then(|()| fs::rename(&part, &path));
    if let Err(error) = kept {
        let _ = fs::remove_file(&part);
        tracing::debug!("{} is not kept: {error}", path.display());
    }
}
