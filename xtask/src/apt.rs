//! The system's package manager, on Debian and Ubuntu.

use crate::run;
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// Whether it is there.
pub fn is_there() -> bool {
    cfg!(target_os = "linux") && Path::new("/usr/bin/apt-get").exists()
}

/// Installs packages, without what they only recommend.
pub fn install(packages: &[&str]) -> Result<()> {
    apt(&["update"])?;
    let how = ["install", "--yes", "--no-install-recommends"];
    apt(&[&how, packages].concat())
}

/// Runs apt-get, through sudo where the user is not root.
fn apt(arguments: &[&str]) -> Result<()> {
    let id = Command::new("id").arg("-u").output()?;
    let root = String::from_utf8_lossy(&id.stdout).trim() == "0";
    let mut command = if root {
        Command::new("apt-get")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.arg("--preserve-env=DEBIAN_FRONTEND").arg("apt-get");
        sudo
    };
    run(command
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive"))
}
