//! From the options of GPUs to an opened device.

use crate::args::Gpu;
use anyhow::{Context, Result};
use rusty_backend::{Device, DeviceChoice};

/// Opens a DEVICE argument; kernels are looked for in the package that the options name from now on.
pub fn open(choice: &str, threads: Option<usize>, options: &Gpu) -> Result<Device> {
    let choice: DeviceChoice = choice.parse().context("--device")?;
    use_package(options)?;
    let memory = options.gpu_memory.map(|b| b.as_u64());
    Ok(Device::open_within(&choice, threads, memory)?)
}

/// Looks for kernels in the package that the options name, from now on.
pub fn use_package(options: &Gpu) -> Result<()> {
    match &options.kernels {
        Some(folder) => rusty_backend::package::use_package(folder).context("--kernels"),
        None => Ok(()),
    }
}
