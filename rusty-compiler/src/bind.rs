//! Attaching weights and a device to a plan.

use crate::cpu::CpuExecutable;
use crate::gpu::GpuExecutable;
use crate::gpu::tuner::{self, Effort};
use crate::passes::select;
use crate::self_test::is_refusal;
use crate::{BUILD, BindOptions, Executable, Plan, Result};
use rusty_backend::{Device, package};
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

/// As [`bind`]; where the device is a GPU on which this model's shapes have not run, choices among kernels are measured
/// first ([`tuner`]). `progress` is told how many measurements are done, and how many there are. Nothing is measured, nor taken of what
/// was, where kernels come from a [package](rusty_backend::package): it holds those that are guessed, and others would be compiled here.
///
/// # Errors
/// As [`bind`].
pub fn bind_tuned(
    mut plan: Plan,
    file: &dyn ModelFile,
    device: &Device,
    options: &BindOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<Box<dyn Executable>> {
    let Device::Gpu(gpu) = device else {
        return bind(plan, file, device, options);
    };
    if package::facts(gpu.target(), BUILD).is_some() {
        return bind(plan, file, device, options);
    }
    let effort = Effort::default();
    let guessed = plan.clone();
    if let Some(tuning) = tuner::kept(&plan, &effort) {
        plan.tuning = tuning;
        select::again(&mut plan)?;
        match GpuExecutable::bind(plan, file, gpu.clone(), *options) {
            Err(error) if is_refusal(&error) => {
                tracing::warn!("{}: not tuned as before: {error}", guessed.target.name);
            }
            bound => return Ok(Box::new(bound?)),
        }
    }
    let mut executable = GpuExecutable::bind(guessed, file, gpu.clone(), *options)?;
    tuner::tune(&mut executable, &effort, progress)?;
    Ok(Box::new(executable))
}
