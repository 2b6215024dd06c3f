//! Described targets: facts of devices that need not be present.

use crate::target::{Family, Isa, Language, Target, WgpuApi};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

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
        m3(),
        h200(),
    ]
}

/// A CPU of a given instruction set with 8 cores and 16 GiB.
pub(crate) fn cpu(name: &str, isa: Isa) -> Target {
    Target {
        name: name.into(),
        family: Family::Cpu,
        language: Language::Native,
        isa,
        threads: 8,
        plane_size: 1,
        plane_size_max: 1,
        plane_ops: false,
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
        cuda_arch: 0,
    }
}

fn gpu(name: &str, family: Family, language: Language) -> Target {
    Target {
        name: name.into(),
        family,
        language,
        isa: Isa::Scalar,
        threads: 0,
        plane_size: 32,
        plane_size_max: 32,
        plane_ops: true,
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
        ..gpu("rdna3", Family::Wgpu(WgpuApi::Vulkan), Language::Wgsl)
    }
}

/// An Apple M3 under Metal through wgpu.
fn m3() -> Target {
    Target {
        matrix_tiles: vec![(8, 8, 8)],
        unified_memory: true,
        ..gpu("m3", Family::Wgpu(WgpuApi::Metal), Language::Wgsl)
    }
}

/// One NVIDIA H200 under CUDA.
fn h200() -> Target {
    Target {
        matrix_tiles: vec![(16, 8, 16)],
        max_binding_bytes: 139 * GIB,
        max_buffer_bytes: 139 * GIB,
        max_bindings: 64,
        max_groups: [i32::MAX as u32, 65_535, 65_535],
        shared_bytes: 48 << 10,
        memory_bytes: 139 * GIB,
        cuda_arch: 90,
        ..gpu("h200", Family::Cuda, Language::CudaC)
    }
}
