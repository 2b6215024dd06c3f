//! Where golden data lies; part of the tests of several crates.

use std::path::PathBuf;

/// A file or folder of the goldens; models that they lack lie in `tests/architectures`.
pub fn golden(path: &str) -> PathBuf {
    let tests = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests"));
    let found = tests.join("goldens").join(path);
    match path.strip_prefix("models/").filter(|_| !found.exists()) {
        Some(model) => tests.join("architectures").join(model),
        None => found,
    }
}
