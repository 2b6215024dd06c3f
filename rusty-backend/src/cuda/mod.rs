//! NVIDIA GPUs through the driver and NVRTC, both found at run time.
//!
//! Kernels are CUDA C++ from our own compiler, turned into machine code for the very device by NVRTC. Arguments
//! of a kernel are its buffers' addresses in order and then its info block by value. A recording is a CUDA graph,
//! captured on a stream of its own and launched on the stream that all kernels of a device go through, as do small writes
//! before a step and the copies of its results behind it.
//!
//! Weights go through a second stream, so that those of later layers travel while earlier ones run. `order.rs` holds
//! the rules between the two; all else that is written is behind the kernels, in the order of the calls.

pub(crate) mod cubin;
mod device;
mod facts;
mod graph;
mod memory;
pub mod nvrtc;
mod order;
mod read_back;
mod transfer;

pub use device::CudaDevice;

use crate::device::{DeviceChoice, DeviceInfo};
use crate::{Error, GpuDevice, Result};
use cudarc::driver::{CudaContext, DriverError, sys};
use std::sync::Arc;

/// Why there is no CUDA here; `None` where there is.
fn why_none() -> Option<String> {
    // SAFETY: loading NVIDIA's driver library runs its initialisers, which have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Some("NVIDIA's driver library (libcuda) was not found".into());
    }
    if let Err(error) = cudarc::driver::result::init() {
        return Some(format!("NVIDIA's driver does not start: {error}"));
    }
    match CudaContext::device_count() {
        Ok(0) => Some("NVIDIA's driver is there but sees no device".into()),
        Err(error) => Some(format!("NVIDIA's driver counts no devices: {error}")),
        Ok(_) => nvrtc::load()
            .err()
            .filter(|_| !crate::package::has_machine_code()),
    }
}

/// CUDA devices for a listing.
pub(crate) fn discover() -> Vec<DeviceInfo> {
    if let Some(reason) = why_none() {
        return vec![DeviceInfo::absent(DeviceChoice::Cuda(0), reason)];
    }
    let count = CudaContext::device_count().unwrap_or(0).max(0) as usize;
    (0..count)
        .map(|ordinal| {
            let choice = DeviceChoice::Cuda(ordinal);
            match facts::identity(ordinal) {
                Ok((name, memory_bytes)) => DeviceInfo {
                    choice: choice.to_string(),
                    name,
                    hardware: true,
                    memory_bytes,
                    weights: "copied",
                    absent: None,
                },
                Err(error) => DeviceInfo::absent(choice, error.to_string()),
            }
        })
        .collect()
}

/// Opens the device of `ordinal`, which may use at most `memory_limit` bytes.
pub(crate) fn open(ordinal: usize, memory_limit: Option<u64>) -> Result<Arc<dyn GpuDevice>> {
    let absent = |reason: String| Error::Absent {
        asked: DeviceChoice::Cuda(ordinal).to_string(),
        reason,
        available: String::new(),
    };
    if let Some(reason) = why_none() {
        return Err(absent(reason));
    }
    let count = CudaContext::device_count().unwrap_or(0).max(0) as usize;
    if ordinal >= count {
        return Err(absent(format!("the driver sees {count} devices")));
    }
    Ok(Arc::new(CudaDevice::open(ordinal, memory_limit).map_err(
        |error| absent(format!("it does not open: {error}")),
    )?))
}

/// Whether a call failed for lack of memory.
fn is_full(error: DriverError) -> bool {
    error.0 == sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY
}

/// The error of a driver call that did not lack memory; errors after which a context is of no more use are the
/// device's loss.
fn failed(device: &str, call: &str, error: DriverError) -> Error {
    use sys::cudaError_enum as E;
    let gone = matches!(
        error.0,
        E::CUDA_ERROR_ILLEGAL_ADDRESS
            | E::CUDA_ERROR_LAUNCH_FAILED
            | E::CUDA_ERROR_LAUNCH_TIMEOUT
            | E::CUDA_ERROR_MISALIGNED_ADDRESS
            | E::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | E::CUDA_ERROR_INVALID_PC
            | E::CUDA_ERROR_HARDWARE_STACK_ERROR
            | E::CUDA_ERROR_ECC_UNCORRECTABLE
            | E::CUDA_ERROR_CONTEXT_IS_DESTROYED
    );
    if gone {
        return Error::Lost {
            device: device.into(),
            reason: format!("{call}: {error}"),
        };
    }
    Error::Driver {
        device: device.into(),
        call: call.into(),
        reason: error.to_string(),
    }
}
