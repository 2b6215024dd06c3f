//! NVIDIA's run-time compiler from PyPI, so that CUDA texts are compiled in tests on machines without CUDA.

use crate::{pip, root};
use anyhow::{Result, bail};
use std::path::PathBuf;

/// The package, as tried.
const PACKAGE: &str = "nvidia-cuda-nvrtc==13.*";

/// Installs the package below `target/` on the machines that PyPI has it for; on others no test needs it.
pub fn ensure_compiler() -> Result<()> {
    if !(cfg!(target_os = "linux") && cfg!(target_arch = "x86_64")) || library_folder().is_some() {
        return Ok(());
    }
    let pip = pip::install(PACKAGE, &folder()).arg("--no-deps").output();
    let reason = match pip {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_string(),
        Err(error) => error.to_string(),
    };
    let reason = reason.lines().last().unwrap_or("no reason given");
    bail!("NVRTC, which tests compile CUDA texts with, cannot be installed: {reason}")
}

/// Where the library lies, once installed.
pub fn library_folder() -> Option<PathBuf> {
    let folder = folder().join("nvidia/cu13/lib");
    folder.is_dir().then_some(folder)
}

fn folder() -> PathBuf {
    root().join("target/nvrtc")
}
