//! Described targets: facts of devices that need not be present.

use crate::target::{Family, Isa, Language, Target, WgpuApi};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Makers state bandwidths in these.
const GB: u64 = 1_000_000_000;
/// Cost of a launch in a CUDA graph, in nanoseconds: what is aimed at, not measured.
const CUDA_LAUNCH: u32 = 3_700;
/// The same of a dispatch in a pass over prebuilt bind groups: a guess.
const WGPU_LAUNCH: u32 = 5_000;

/// Every described target.
pub(crate) fn all() -> Vec<Target> {
    vec![
        cpu(
            "avx512",
            Isa::Avx512 {
                vnni: true,
                bf16: true,
            },
        ),
        cpu("avx2", Isa::Avx2),
        cpu("neon", Isa::Neon { dotprod: true }),
        cpu("scalar", Isa::Scalar),
        llvmpipe(),
        rdna3(),
        m2(),
        rtx4090(),
        h200(),
    ]
}

/// A CPU of a given instruction set with 8 cores and 16 GiB.
pub(crate) fn cpu(name: &str, isa: Isa) -> Target {
    Target {
        name: name.into(),
        driver: String::new(),
        family: Family::Cpu,
        language: Language::Native,
        isa,
        threads: 8,
        plane_size: 1,
        plane_size_max: 1,
        plane_ops: false,
        orders_groups: false,
        f16: false,
        packed_dot: isa != Isa::Scalar,
        matrix_tiles: vec![],
        max_binding_bytes: u64::MAX,
        max_buffer_bytes: u64::MAX,
        binding_align: 64,
        max_bindings: u32::MAX,
        max_groups: [u32::MAX; 3],
        max_units: 1,
        shared_bytes: 0,
        memory_bytes: 16 * GIB,
        unified_memory: true,
        read_bandwidth: 0,
        launch_nanos: 0,
        cuda_arch: 0,
    }
}

fn gpu(name: &str, family: Family, language: Language) -> Target {
    Target {
        name: name.into(),
        driver: String::new(),
        family,
        language,
        isa: Isa::Scalar,
        threads: 0,
        plane_size: 32,
        plane_size_max: 32,
        plane_ops: true,
        orders_groups: true,
        f16: true,
        packed_dot: true,
        matrix_tiles: vec![],
        max_binding_bytes: 2 * GIB - 4,
        max_buffer_bytes: 2 * GIB,
        binding_align: 256,
        max_bindings: 16,
        max_groups: [65_535; 3],
        max_units: 1024,
        shared_bytes: 32 << 10,
        memory_bytes: 16 * GIB,
        unified_memory: false,
        read_bandwidth: 0,
        launch_nanos: 0,
        cuda_arch: 0,
    }
}

/// Mesa's software Vulkan as of 22.3.
fn llvmpipe() -> Target {
    Target {
        plane_size: 8,
        plane_size_max: 8,
        packed_dot: false,
        max_binding_bytes: 128 * MIB,
        unified_memory: true,
        ..gpu("llvmpipe", Family::Wgpu(WgpuApi::Vulkan), Language::Wgsl)
    }
}

/// A Radeon RX 7900 under Vulkan, where the driver chooses wave32 or wave64 per pipeline.
fn rdna3() -> Target {
    Target {
        plane_size_max: 64,
        plane_ops: false,
        matrix_tiles: vec![(16, 16, 16)],
        memory_bytes: 24 * GIB,
        read_bandwidth: 960 * GB,
        launch_nanos: WGPU_LAUNCH,
        ..gpu("rdna3", Family::Wgpu(WgpuApi::Vulkan), Language::Wgsl)
    }
}

/// An Apple M2 under Metal through wgpu.
fn m2() -> Target {
    Target {
        orders_groups: false,
        matrix_tiles: vec![(8, 8, 8)],
        unified_memory: true,
        read_bandwidth: 100 * GB,
        launch_nanos: WGPU_LAUNCH,
        ..gpu("m2", Family::Wgpu(WgpuApi::Metal), Language::Wgsl)
    }
}

/// A CUDA device of compute capability 8 or more.
fn cuda(name: &str, cuda_arch: u32, memory_bytes: u64) -> Target {
    Target {
        matrix_tiles: vec![(16, 8, 16)],
        max_binding_bytes: memory_bytes,
        max_buffer_bytes: memory_bytes,
        max_bindings: 64,
        max_groups: [i32::MAX as u32, 65_535, 65_535],
        shared_bytes: 48 << 10,
        memory_bytes,
        launch_nanos: CUDA_LAUNCH,
        cuda_arch,
        ..gpu(name, Family::Cuda, Language::CudaC)
    }
}

/// An NVIDIA GeForce RTX 4090 under CUDA.
fn rtx4090() -> Target {
    Target {
        read_bandwidth: 1008 * GB,
        ..cuda("rtx4090", 89, 24 * GIB)
    }
}

/// One NVIDIA H200 under CUDA; its bandwidth as a copy in device memory was measured to reach.
fn h200() -> Target {
    Target {
        read_bandwidth: 4300 * GB,
        ..cuda("h200", 90, 139 * GIB)
    }
}
