//! What a compiler may know of a device: plain data, so that plans are made and tested with no device.

use serde::{Deserialize, Serialize};

/// Bytes of a binding that kernels address at most: places in it are words of 32 bits.
pub const ADDRESSABLE: u64 = 1 << 31;

/// Who runs the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Family {
    /// Native kernels on the host's cores.
    Cpu,
    /// WebGPU over a system API.
    Wgpu(WgpuApi),
    /// NVIDIA's driver and NVRTC.
    Cuda,
}

/// The system API below wgpu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WgpuApi {
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
}

/// Instruction set of CPU kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Isa {
    /// Portable code.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2 {
        /// AVX-VNNI: `vpdpbusd` on 256 bits.
        vnni: bool,
    },
    /// AVX-512 F, BW, DQ and VL.
    Avx512 {
        /// `vpdpbusd`.
        vnni: bool,
        /// `vdpbf16ps`.
        bf16: bool,
        /// Tile registers, products of bytes.
        amx: bool,
    },
    /// Arm's 128-bit vectors.
    Neon {
        /// `sdot`.
        dotprod: bool,
    },
}

/// Text that a device's pipelines are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Language {
    /// None: native kernels.
    Native,
    /// WebGPU shading language.
    Wgsl,
    /// CUDA C++.
    CudaC,
}

/// Facts of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// Short name: `cpu-avx512`, `llvmpipe`, `h200`.
    pub name: String,
    /// Its driver and version; empty where there is none to speak of.
    pub driver: String,
    /// Who runs the kernels.
    pub family: Family,
    /// Text of its kernels.
    pub language: Language,
    /// Instruction set (CPU only; `Scalar` elsewhere).
    pub isa: Isa,
    /// Threads of the CPU device; 0 elsewhere.
    pub threads: usize,
    /// Whether a core reads long runs of memory ahead on its own, so that it is asked for little or nothing (CPU only): AMD's Zen 3
    /// and later, by what a Zen 4 did.
    pub reads_ahead: bool,
    /// Units that run in lockstep (subgroup, warp), a power of two; the least where a driver may choose. So many neighbours exchange
    /// values, whatever it chooses.
    pub plane_size: u32,
    /// The most units of a plane that a driver may choose; where it differs from `plane_size`, matrix units, of which all units of a
    /// plane hold a part, cannot be used.
    pub plane_size_max: u32,
    /// Whether units of a plane exchange values.
    pub plane_ops: bool,
    /// Whether what a group has written to buffers before a barrier is seen by groups that learn of it through an atomic after
    /// theirs. CUDA's fences do it, and coherent buffers under Vulkan and DX12; WebGPU promises nothing of the kind.
    pub orders_groups: bool,
    /// Whether groups are known to start in the order of their numbers, the first dimension counting fastest, so that it pays for a
    /// group to wait for those before it. CUDA's devices do it, though its guide promises as little as others': results do not
    /// depend on it.
    pub starts_in_order: bool,
    /// Half-precision arithmetic.
    pub f16: bool,
    /// Sums of four products of signed bytes as one instruction, or as what the driver makes of it.
    pub packed_dot: bool,
    /// Shapes `(m, n, k)` of products on 16-bit floats that a plane makes together.
    pub matrix_tiles: Vec<(u32, u32, u32)>,
    /// Largest range of a buffer that a kernel may bind, in bytes.
    pub max_binding_bytes: u64,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Alignment of a binding's offset in its buffer, in bytes.
    pub binding_align: u64,
    /// Buffers that one kernel may bind, its info block among them.
    pub max_bindings: u32,
    /// Most groups of a launch, per dimension.
    pub max_groups: [u32; 3],
    /// Most units of a group.
    pub max_units: u32,
    /// Shared memory of a group, in bytes.
    pub shared_bytes: u32,
    /// Memory of the device, in bytes; 0 where the driver does not tell.
    pub memory_bytes: u64,
    /// Whether host and device share memory.
    pub unified_memory: bool,
    /// Bytes that all units together read per second, at best; 0 where not known.
    pub read_bandwidth: u64,
    /// What a launch of a recording costs beside its bytes, in nanoseconds; 0 where not known.
    pub launch_nanos: u32,
    /// Compute capability of a CUDA device (90 for sm_90); 0 elsewhere.
    pub cuda_arch: u32,
}

impl WgpuApi {
    /// All of them, in the order in which they are tried.
    pub const ALL: [WgpuApi; 3] = [WgpuApi::Vulkan, WgpuApi::Metal, WgpuApi::Dx12];

    /// The word that chooses it.
    pub fn word(self) -> &'static str {
        match self {
            WgpuApi::Vulkan => "vulkan",
            WgpuApi::Metal => "metal",
            WgpuApi::Dx12 => "dx12",
        }
    }
}

impl Target {
    /// A described target, for planning without the device: one of [`Target::names`], or a CUDA architecture, `cuda:sm_90`,
    /// from `sm_70` on.
    pub fn named(name: &str) -> Option<Target> {
        let mut all = crate::targets::all().into_iter();
        all.find(|t| t.name == name)
            .or_else(|| crate::targets::cuda_named(name))
    }

    /// Names of all described targets but CUDA's architectures.
    pub fn names() -> Vec<String> {
        crate::targets::all().into_iter().map(|t| t.name).collect()
    }

    /// The host's CPU with all its cores.
    pub fn host_cpu() -> Target {
        crate::CpuDevice::new(None).target().clone()
    }

    /// Whether kernels multiply 16-bit floats on matrix units of 32-wide planes (`m16n8k16`).
    pub fn multiplies_bf16(&self) -> bool {
        let planes = self.plane_ops && self.plane_size == self.plane_size_max;
        !self.is_cpu() && planes && self.matrix_tiles.contains(&(16, 8, 16))
    }

    /// Whether kernels of GPUs multiply bytes by fours.
    pub fn multiplies_bytes(&self) -> bool {
        !self.is_cpu() && self.packed_dot
    }

    /// These facts without those for which kernels round what they multiply with floats: to bytes, or to 16-bit floats.
    pub fn in_single_precision(&self) -> Target {
        let mut target = self.clone();
        if let Isa::Avx512 { bf16, .. } = &mut target.isa {
            *bf16 = false;
        }
        if !self.is_cpu() {
            target.packed_dot = false;
            target.matrix_tiles.clear();
            target.f16 = false;
        }
        target
    }

    /// Units of a plane, or 0 where kernels cannot count on planes.
    pub fn plane(&self) -> u32 {
        match self.plane_ops {
            true => self.plane_size,
            false => 0,
        }
    }

    /// Whether kernels are native code.
    pub fn is_cpu(&self) -> bool {
        self.family == Family::Cpu
    }
}
