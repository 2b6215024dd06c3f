//! Attaching weights and a device to a plan.

use crate::cpu::CpuExecutable;
use crate::gpu::GpuExecutable;
use crate::{BindOptions, Executable, Plan, Result};
use rusty_backend::Device;
use rusty_loader::ModelFile;

/// Brings a plan's weights to `device` and reserves its KV pages, adapter slots and activations.
///
/// # Errors
/// [`Error::Weight`](crate::Error::Weight) where the file does not hold what the plan reads,
/// [`Error::Target`](crate::Error::Target) where the device cannot run a kernel of the plan,
/// [`Error::Device`](crate::Error::Device) where it is lost or out of memory.
pub fn bind(
    plan: Plan,
    file: &dyn ModelFile,
    device: &Device,
    options: &BindOptions,
) -> Result<Box<dyn Executable>> {
    Ok(match device {
        Device::Cpu(cpu) => Box::new(CpuExecutable::bind(plan, file, cpu, options)?),
        Device::Gpu(gpu) => Box::new(GpuExecutable::bind(plan, file, gpu.clone(), *options)?),
    })
}
