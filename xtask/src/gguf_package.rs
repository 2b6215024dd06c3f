//! llama.cpp's `gguf` Python package, by which tests have what Rusty writes read by somebody else.

use crate::{pip, root, run};
use anyhow::{Context, Result};

/// The package, as tried.
const PACKAGE: &str = "gguf==0.19.0";

/// Installs the package below `target/`, where the tests look for it.
pub fn ensure() -> Result<()> {
    let folder = root().join("target/gguf-package");
    if folder.join("gguf").is_dir() {
        return Ok(());
    }
    run(&mut pip::install(PACKAGE, &folder))
        .context("Python's pip is needed to install the gguf package")
}
