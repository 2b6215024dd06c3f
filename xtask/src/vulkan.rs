//! A software Vulkan device for the tests: Mesa's lavapipe from the system's packages, installed where
//! lavapipe is not registered.

use crate::run;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

const DRIVER_FOLDERS: &[&str] = &[
    "/usr/share/vulkan/icd.d",
    "/etc/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
];

const LOADERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/libvulkan.so.1",
    "/usr/lib/aarch64-linux-gnu/libvulkan.so.1",
    "/usr/lib/libvulkan.so.1",
];

/// Installs `mesa-vulkan-drivers` and the loader on Debian and Ubuntu unless lavapipe is there.
pub fn ensure_device() -> Result<()> {
    if !cfg!(target_os = "linux") || is_installed() {
        return Ok(());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("no software Vulkan driver found; install Mesa's lavapipe and the Vulkan loader");
    }
    apt(&["update"])?;
    apt(&[
        "install",
        "--yes",
        "--no-install-recommends",
        "mesa-vulkan-drivers",
        "libvulkan1",
    ])?;
    if !is_installed() {
        bail!("mesa-vulkan-drivers was installed but registers no lavapipe driver");
    }
    Ok(())
}

fn is_installed() -> bool {
    let lavapipe = DRIVER_FOLDERS.iter().any(|folder| {
        std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("lvp_icd"))
    });
    lavapipe && LOADERS.iter().any(|loader| Path::new(loader).exists())
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
