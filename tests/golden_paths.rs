//! Where golden data lies; part of the tests of several crates.

use std::path::PathBuf;

/// The folder that `tests` and `assets` lie in: the workspace, or the one that `RUSTY_ROOT` names where tests run on
/// another machine than they were built on.
pub fn root() -> PathBuf {
    match std::env::var_os("RUSTY_ROOT") {
        Some(named) => named.into(),
        None => concat!(env!("CARGO_MANIFEST_DIR"), "/..").into(),
    }
}

/// A file or folder of the goldens; models that they lack lie in `tests/architectures`.
pub fn golden(path: &str) -> PathBuf {
    let tests = root().join("tests");
    let found = tests.join("goldens").join(path);
    match path.strip_prefix("models/").filter(|_| !found.exists()) {
        Some(model) => tests.join("architectures").join(model),
        None => found,
    }
}
