//! From the options of GPUs to an opened device.

use crate::args::Gpu;
use anyhow::{Context, Result};
use rusty_backend::{Device, DeviceChoice};
use std::path::Path;

/// Opens a DEVICE argument; of kernels' packages, machine code is looked for from now on.
pub fn open(choice: &str, threads: Option<usize>, options: &Gpu) -> Result<Device> {
    let choice: DeviceChoice = choice.parse().context("--device")?;
    use_package(options)?;
    let memory = options.gpu_memory.map(|b| b.as_u64());
    Ok(Device::open_within(&choice, threads, memory)?)
}

/// Looks for machine code in the package that the options name, from now on.
pub fn use_package(options: &Gpu) -> Result<()> {
    match &options.kernels {
        Some(folder) => use_folder(folder),
        None => Ok(()),
    }
}

fn use_folder(folder: &Path) -> Result<()> {
    let manifest = std::fs::read(folder.join("manifest.json"));
    let manifest = manifest.with_context(|| {
        let folder = folder.display();
        format!("--kernels {folder}: no manifest.json there; `rusty compile` writes one")
    })?;
    let manifest: serde_json::Value = serde_json::from_slice(&manifest)
        .with_context(|| format!("{}", folder.join("manifest.json").display()))?;
    if manifest["kernels"]
        .as_array()
        .is_none_or(|k| k.iter().all(|k| k["code"].is_null()))
    {
        tracing::warn!(
            "{} holds no machine code: it changes nothing",
            folder.display()
        );
    }
    rusty_backend::cuda::nvrtc::use_package(folder);
    Ok(())
}
