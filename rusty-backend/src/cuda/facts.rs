//! Facts of a CUDA device.

use crate::target::{Family, Isa, Language, Target};
use cudarc::driver::{CudaContext, DriverError, result, sys, sys::CUdevice_attribute as A};

/// Name and memory of a device, without opening a context on it.
pub(super) fn identity(ordinal: usize) -> Result<(String, u64), DriverError> {
    let device = result::device::get(ordinal as i32)?;
    // SAFETY: `device` was just returned by the driver.
    let memory = unsafe { result::device::total_mem(device) }?;
    Ok((result::device::get_name(device)?, memory as u64))
}

/// The newest CUDA version that the driver knows, and the driver's own where the system tells it.
fn driver() -> Result<String, DriverError> {
    let mut version = 0;
    // SAFETY: `version` outlives the call.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    let cuda = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    Ok(match module_version(&module) {
        Some(own) => format!("{cuda}, {own}"),
        None => cuda,
    })
}

/// The version in what Linux says of NVIDIA's kernel module: the first word of numbers and points.
fn module_version(said: &str) -> Option<&str> {
    let numbers =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    said.split_whitespace().find(numbers)
}

/// What a compiler may know of the device behind `context`.
pub(super) fn target(context: &CudaContext) -> Result<Target, DriverError> {
    let attribute = |a| context.attribute(a).map(|v| v.max(0) as u32);
    let (major, minor) = context.compute_capability()?;
    let cuda_arch = (major * 10 + minor).max(0) as u32;
    let memory_bytes = context.total_mem()? as u64;
    let plane = attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?;
    Ok(Target {
        name: context.name()?,
        driver: driver()?,
        family: Family::Cuda,
        language: Language::CudaC,
        isa: Isa::Scalar,
        threads: 0,
        reads_ahead: false,
        plane_size: plane,
        plane_size_max: plane,
        plane_ops: true,
        orders_groups: true,
        // Cubes that wait pause by an instruction of that capability.
        starts_in_order: major >= 7,
        f16: true,
        packed_dot: (major, minor) >= (6, 1),
        matrix_tiles: crate::targets::cuda_matrix_tiles(cuda_arch),
        max_binding_bytes: memory_bytes,
        max_buffer_bytes: memory_bytes,
        // What cudaMalloc guarantees, and what slices of an arena keep to, so that vector loads are aligned.
        binding_align: 256,
        max_bindings: 64,
        max_groups: [
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        max_units: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        shared_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        memory_bytes,
        unified_memory: attribute(A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
        read_bandwidth: 0,
        launch_nanos: 0,
        cuda_arch,
    })
}

#[cfg(test)]
mod tests {
    use super::module_version;

    #[test]
    fn drivers_tell_their_version() {
        let said = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\nGCC version: 12.3.0";
        assert_eq!(module_version(said), Some("580.82.07"));
        assert_eq!(module_version(""), None);
    }
}
