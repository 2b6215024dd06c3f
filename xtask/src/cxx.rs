//! The C++ compiler that tests of CUDA's kernels on the host need (`rusty-compiler/tests/it/host_cuda`).

use crate::apt;
use anyhow::{Result, bail};
use std::process::Command;

/// Installs `g++` on Debian and Ubuntu unless it is there or another is named.
pub fn ensure() -> Result<()> {
    let needed = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    let found = || Command::new("g++").arg("--version").output().is_ok();
    if !needed || std::env::var_os("CXX").is_some() || found() {
        return Ok(());
    }
    if !apt::is_there() {
        bail!("no C++ compiler found; install g++, or name another by the variable CXX");
    }
    apt::install(&["g++"])
}
