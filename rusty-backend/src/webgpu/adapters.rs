//! Adapters of a system API and their facts.

use super::WgpuDevice;
use crate::device::{DeviceChoice, DeviceInfo};
use crate::target::{Family, Isa, Language, Target, WgpuApi};
use crate::{Error, GpuDevice, Result};
use pollster::block_on;
use std::sync::Arc;
use wgpu::{Backends, DeviceType, Features};

/// Percent of the driver's memory budget beyond which it refuses buffers instead of paging them out.
const BUDGET_PERCENT: u8 = 95;
/// Units of a plane from which on kernels exchange values in it: desktops' GPUs have as many, and where a driver does not tell, wgpu says 4.
const LEAST_PLANE: u32 = 8;

fn backends(api: WgpuApi) -> Backends {
    match api {
        WgpuApi::Vulkan => Backends::VULKAN,
        WgpuApi::Metal => Backends::METAL,
        WgpuApi::Dx12 => Backends::DX12,
    }
}

/// Adapters of `api`, hardware first, discrete before integrated.
fn adapters(api: WgpuApi) -> Vec<wgpu::Adapter> {
    let mut wanted = wgpu::InstanceDescriptor::new_without_display_handle();
    wanted.backends = backends(api);
    wanted.flags = wgpu::InstanceFlags::empty();
    wanted.memory_budget_thresholds.for_resource_creation = Some(BUDGET_PERCENT);
    let instance = wgpu::Instance::new(wanted);
    let mut found = block_on(instance.enumerate_adapters(backends(api)));
    found.sort_by_key(|adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    found
}

fn why_none(api: WgpuApi) -> String {
    let here = match api {
        WgpuApi::Vulkan => cfg!(not(target_vendor = "apple")),
        WgpuApi::Metal => cfg!(target_vendor = "apple"),
        WgpuApi::Dx12 => cfg!(windows),
    };
    match (here, api) {
        (false, _) => format!("{} is not on this operating system", api.word()),
        (true, WgpuApi::Vulkan) => {
            "no Vulkan driver was found (a software one is in the package mesa-vulkan-drivers)"
                .into()
        }
        (true, _) => "no adapter was found".into(),
    }
}

/// Adapters of `api` for a listing.
pub(crate) fn discover(api: WgpuApi) -> Vec<DeviceInfo> {
    let choice = DeviceChoice::Wgpu(api);
    let found = adapters(api);
    if found.is_empty() {
        return vec![DeviceInfo::absent(choice, why_none(api))];
    }
    let describe = |adapter: &wgpu::Adapter| {
        let info = adapter.get_info();
        DeviceInfo {
            choice: choice.to_string(),
            name: info.name.clone(),
            hardware: info.device_type != DeviceType::Cpu,
            memory_bytes: memory_bytes(adapter),
            weights: "copied",
            absent: None,
        }
    };
    found.iter().map(describe).collect()
}

/// Opens the best adapter of `api`, which may use at most `memory_limit` bytes.
pub(crate) fn open(api: WgpuApi, memory_limit: Option<u64>) -> Result<Arc<dyn GpuDevice>> {
    let absent = |reason: String| Error::Absent {
        asked: api.word().into(),
        reason,
        available: String::new(),
    };
    let adapter = adapters(api).into_iter().next();
    let adapter = adapter.ok_or_else(|| absent(why_none(api)))?;
    let wanted = Features::SUBGROUP
        | Features::SHADER_F16
        | Features::PIPELINE_CACHE
        | Features::MEMORY_DECORATION_COHERENT;
    let features = adapter.features() & wanted;
    let mut target = facts(&adapter, api, features);
    if let Some(limit) = memory_limit {
        target.memory_bytes = match target.memory_bytes {
            0 => limit,
            known => known.min(limit),
        };
    }
    let (device, queue) = block_on(adapter.request_device(&wgpu::DeviceDescriptor {
        label: Some("rusty"),
        required_features: features,
        required_limits: adapter.limits(),
        ..Default::default()
    }))
    .map_err(|error| absent(format!("{} does not open: {error}", target.name)))?;
    tracing::debug!(?target, "opened");
    if api == WgpuApi::Dx12 && !features.contains(Features::SUBGROUP) {
        tracing::warn!(
            "{}: Direct3D's older compiler takes no planes and no half precision, which makes kernels slower; the newer one is dxcompiler.dll \
             (DirectXShaderCompiler), beside the program or on PATH",
            target.name
        );
    }
    let cache = wgpu::util::pipeline_cache_key(&adapter.get_info())
        .filter(|_| features.contains(Features::PIPELINE_CACHE));
    Ok(Arc::new(WgpuDevice::new(target, device, queue, cache)))
}

/// The facts of an adapter, as plain data.
fn facts(adapter: &wgpu::Adapter, api: WgpuApi, features: Features) -> Target {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let (plane_size, plane_size_max) = plane_sizes(&info, api);
    Target {
        driver: format!("{} {}", info.driver, info.driver_info),
        name: info.name,
        family: Family::Wgpu(api),
        language: Language::Wgsl,
        isa: Isa::Scalar,
        threads: 0,
        reads_ahead: false,
        plane_size,
        plane_size_max,
        plane_ops: features.contains(Features::SUBGROUP) && plane_size >= LEAST_PLANE,
        // Metal's barriers order a group's own memory only.
        orders_groups: features.contains(Features::MEMORY_DECORATION_COHERENT)
            && api != WgpuApi::Metal,
        starts_in_order: false,
        f16: features.contains(Features::SHADER_F16),
        // Metal's language has no such product.
        packed_dot: api != WgpuApi::Metal,
        // WGSL has cooperative matrices only as an experiment.
        matrix_tiles: vec![],
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        max_buffer_bytes: limits.max_buffer_size,
        binding_align: u64::from(limits.min_storage_buffer_offset_alignment),
        max_bindings: limits.max_storage_buffers_per_shader_stage,
        max_groups: [limits.max_compute_workgroups_per_dimension; 3],
        max_units: limits.max_compute_invocations_per_workgroup,
        shared_bytes: limits.max_compute_workgroup_storage_size,
        memory_bytes: memory_bytes(adapter),
        unified_memory: matches!(
            info.device_type,
            DeviceType::IntegratedGpu | DeviceType::Cpu
        ),
        read_bandwidth: 0,
        launch_nanos: 0,
        cuda_arch: 0,
    }
}

/// The least and the most units of a plane, between which the driver chooses for each pipeline.
fn plane_sizes(info: &wgpu::AdapterInfo, api: WgpuApi) -> (u32, u32) {
    // wgpu has no way to ask Metal and says 4 to 64; Apple's own GPUs have one size (<https://github.com/gpuweb/gpuweb/issues/3950>).
    match api == WgpuApi::Metal && info.name.starts_with("Apple") {
        true => (32, 32),
        false => (info.subgroup_min_size, info.subgroup_max_size),
    }
}

/// Memory that an adapter may use, in bytes; 0 where the API does not tell.
fn memory_bytes(adapter: &wgpu::Adapter) -> u64 {
    let unified = matches!(
        adapter.get_info().device_type,
        DeviceType::IntegratedGpu | DeviceType::Cpu
    );
    let own = vulkan_heap_bytes(adapter);
    match (own, unified) {
        (Some(bytes), false) => bytes,
        // Drivers of unified memory report a part of the host's, or more than a container may use.
        (own, true) => {
            let host = crate::cpu::memory_bytes();
            own.map_or(host, |bytes| bytes.min(host))
        }
        (None, false) => 0,
    }
}

#[cfg(not(target_vendor = "apple"))]
fn vulkan_heap_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the adapter is only asked for its memory properties, and nothing of it is destroyed.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let physical = adapter.raw_physical_device();
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: the physical device comes from this very instance, and both outlive the call.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    // Bit 0 of a heap's flags is VK_MEMORY_HEAP_DEVICE_LOCAL_BIT.
    memory
        .memory_heaps
        .iter()
        .take(memory.memory_heap_count as usize)
        .filter(|heap| heap.flags.as_raw() & 1 != 0)
        .map(|heap| heap.size)
        .max()
}

#[cfg(target_vendor = "apple")]
fn vulkan_heap_bytes(_adapter: &wgpu::Adapter) -> Option<u64> {
    None
}
