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
                amx: false,
            },
        ),
        cpu("avx2", Isa::Avx2 { vnni: false }),
        cpu("avxvnni", Isa::Avx2 { vnni: true }),
        cpu("neon", Isa::Neon { dotprod: false }),
        cpu("neondot", Isa::Neon { dotprod: true }),
        cpu("scalar", Isa::Scalar),
        llvmpipe(),
        vulkan(),
        metal(),
        dx12(),
        webgpu(),
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
        reads_ahead: false,
        plane_size: 1,
        plane_size_max: 1,
        plane_ops: false,
        orders_groups: false,
        starts_in_order: false,
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
        reads_ahead: false,
        plane_size: 32,
        plane_size_max: 32,
        plane_ops: true,
        orders_groups: true,
        starts_in_order: false,
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
        max_binding_bytes: 128 * MIB,
        unified_memory: true,
        ..gpu("llvmpipe", Family::Wgpu(WgpuApi::Vulkan), Language::Wgsl)
    }
}

/// What desktops' GPUs have under Vulkan: planes of 8 units and more.
fn vulkan() -> Target {
    Target {
        plane_size: 8,
        plane_size_max: 64,
        f16: false,
        max_binding_bytes: 128 * MIB,
        launch_nanos: WGPU_LAUNCH,
        ..gpu("vulkan", Family::Wgpu(WgpuApi::Vulkan), Language::Wgsl)
    }
}

/// What Apple's own GPUs have under Metal.
fn metal() -> Target {
    Target {
        orders_groups: false,
        packed_dot: false,
        unified_memory: true,
        launch_nanos: WGPU_LAUNCH,
        ..gpu("metal", Family::Wgpu(WgpuApi::Metal), Language::Wgsl)
    }
}

/// What desktops' GPUs have under Direct3D 12, whose older compiler, all that some machines have, knows no planes.
fn dx12() -> Target {
    Target {
        family: Family::Wgpu(WgpuApi::Dx12),
        name: "dx12".into(),
        plane_ops: false,
        ..vulkan()
    }
}

/// What browsers give a desktop's GPU under WebGPU, without features. Limits are those that a page gets unasked, but for shared memory:
/// tiles of contractions take more than the 16 KiB of `maxComputeWorkgroupStorageSize` (17 KiB of one part, 22 KiB of two), so a
/// page has to ask for 32 KiB.
fn webgpu() -> Target {
    Target {
        name: "webgpu".into(),
        plane_ops: false,
        orders_groups: false,
        packed_dot: false,
        max_buffer_bytes: 256 * MIB,
        max_bindings: 8,
        max_units: 256,
        ..vulkan()
    }
}

/// A Radeon RX 7900 under Vulkan, where the driver chooses wave32 or wave64 per pipeline.
fn rdna3() -> Target {
    Target {
        plane_size: 32,
        f16: true,
        matrix_tiles: vec![(16, 16, 16)],
        memory_bytes: 24 * GIB,
        max_binding_bytes: 2 * GIB - 4,
        read_bandwidth: 960 * GB,
        name: "rdna3".into(),
        ..vulkan()
    }
}

/// An Apple M2 under Metal.
fn m2() -> Target {
    Target {
        matrix_tiles: vec![(8, 8, 8)],
        read_bandwidth: 100 * GB,
        name: "m2".into(),
        ..metal()
    }
}

/// The least compute capability of a CUDA device that is described, times ten.
const OLDEST_CUDA: u32 = 70;

/// A CUDA device by its architecture, `cuda:sm_90`; none where it is older than kernels need.
pub(crate) fn cuda_named(name: &str) -> Option<Target> {
    let arch = name.strip_prefix("cuda:sm_")?.parse().ok()?;
    (OLDEST_CUDA..200)
        .contains(&arch)
        .then(|| cuda(name, arch, 16 * GIB))
}

/// Matrix instructions of a CUDA architecture: `mma.sync` on bf16 came with compute capability 8.
pub(crate) fn cuda_matrix_tiles(arch: u32) -> Vec<(u32, u32, u32)> {
    if arch >= 80 {
        vec![(16, 8, 16)]
    } else {
        vec![]
    }
}

/// A CUDA device of some architecture.
fn cuda(name: &str, cuda_arch: u32, memory_bytes: u64) -> Target {
    // The most that a kernel may ask for: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
    let shared_kib = match cuda_arch {
        70..75 => 96,
        75..80 => 64,
        80 | 87 => 163,
        81..90 | 120.. => 99,
        _ => 227,
    };
    Target {
        starts_in_order: true,
        matrix_tiles: cuda_matrix_tiles(cuda_arch),
        max_binding_bytes: memory_bytes,
        max_buffer_bytes: memory_bytes,
        max_bindings: 64,
        max_groups: [i32::MAX as u32, 65_535, 65_535],
        shared_bytes: shared_kib << 10,
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

/// One NVIDIA H200 under CUDA; its bandwidth is what a copy in device memory was measured to reach.
fn h200() -> Target {
    Target {
        read_bandwidth: 4300 * GB,
        ..cuda("h200", 90, 139 * GIB)
    }
}
