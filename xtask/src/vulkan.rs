//! A software Vulkan device for the tests: Mesa's lavapipe from the system's packages, installed where
//! lavapipe is not registered. And the loader library, which every Vulkan device needs.

use crate::apt;
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// The loader library by the name that programs load it by.
pub const LOADER: &str = "libvulkan.so.1";

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
    if !apt::is_there() {
        bail!("no software Vulkan driver found; install Mesa's lavapipe and the Vulkan loader");
    }
    apt::install(&["mesa-vulkan-drivers", "libvulkan1"])?;
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
    lavapipe && loader().is_some()
}

/// Where the loader library lies: in a usual folder, or where the system's linker knows it.
pub fn loader() -> Option<PathBuf> {
    let mut usual = LOADERS.iter().map(PathBuf::from);
    usual.find(|path| path.exists()).or_else(loader_of_linker)
}

/// What `ldconfig`, which is not in everyone's path, says of the loader for 64 bits.
fn loader_of_linker() -> Option<PathBuf> {
    let programs = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter();
    let mut said = programs.filter_map(|program| Command::new(program).arg("-p").output().ok());
    let said = said.next()?.stdout;
    // `libvulkan.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libvulkan.so.1`
    let said = String::from_utf8_lossy(&said);
    let lines = said.lines().map(str::trim_start);
    let mut known = lines.filter_map(|line| {
        let (name, path) = line.split_once(" => ")?;
        let (name, kind) = name.split_once(' ')?;
        (name == LOADER && kind.contains("64")).then(|| PathBuf::from(path))
    });
    known.find(|path| path.exists())
}
