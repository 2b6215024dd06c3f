//! Attaching weights and a device to a plan.

use crate::cpu::CpuExecutable;
#[cfg(feature = "gpu")]
use crate::gpu::{GpuExecutable, bind_tested_or_tuned};
use crate::{BindOptions, Executable, Plan, Result};
use rusty_backend::{Device, Target};
use rusty_loader::ModelFile;

/// Brings a plan's weights to `device` and reserves its KV pages, adapter slots and activations.
///
/// # Errors
/// [`Error::Weight`](crate::Error::Weight) where the file does not hold what the plan reads, [`Error::Target`](crate::Error::Target) where the device cannot run a kernel of the
/// plan, [`Error::Refused`](crate::Error::Refused) where it does not take one for which there may be another, [`Error::Device`](crate::Error::Device) where it is lost or out of
/// memory.
pub fn bind(
    plan: Plan,
    file: &dyn ModelFile,
    device: &Device,
    options: &BindOptions,
) -> Result<Box<dyn Executable>> {
    Ok(match device {
        Device::Cpu(cpu) => Box::new(CpuExecutable::bind(plan, file, cpu, options)?),
        #[cfg(feature = "gpu")]
        Device::Gpu(gpu) => Box::new(GpuExecutable::bind(plan, file, gpu.clone(), *options)?),
        #[cfg(not(feature = "gpu"))]
        Device::Gpu(gpu) => {
            return Err(crate::Error::Target {
                target: gpu.target().name.clone(),
                kernel: "all".into(),
                reason: "this program was built without GPUs (the feature 'gpu')".into(),
            });
        }
    })
}

/// As [`bind`]; on a GPU without kernels that it does not take or that go wrong there, with a warning that names them: each is compared
/// with the oracle once for a build, device and driver. A CPU is trusted.
///
/// Given `measuring`, choices among kernels are measured first where this model's shapes have not run on a GPU; it is told how
/// many measurements are done, and how many there are. Nothing is measured, nor taken of what was, where the plan is for a
/// package: it holds those that are guessed, and others would be compiled here.
///
/// # Errors
/// As [`bind`]; [`Error::Target`](crate::Error::Target) also where a kernel goes wrong and no other could take its place.
pub fn bind_tested(
    plan: Plan,
    file: &dyn ModelFile,
    device: &Device,
    options: &BindOptions,
    measuring: Option<&dyn Fn(u64, u64)>,
) -> Result<Box<dyn Executable>> {
    #[cfg(feature = "gpu")]
    if let Device::Gpu(gpu) = device {
        return bind_tested_or_tuned(plan, file, gpu, options, measuring);
    }
    let _ = measuring;
    bind(plan, file, device, options)
}

/// The facts that plans are made of where these are `wanted` of a device: those of the target of a package of kernels that they serve,
/// so that kernels are found there, or else themselves.
pub fn planning_facts(wanted: &Target) -> Target {
    #[cfg(feature = "gpu")]
    if !wanted.is_cpu()
        && let Some(facts) = rusty_backend::package::facts(wanted, crate::BUILD)
    {
        return facts;
    }
    wanted.clone()
}
