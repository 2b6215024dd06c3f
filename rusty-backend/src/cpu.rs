//! The CPU as a device: its instruction set, threads and memory.

use crate::target::{Isa, Target};

/// Threads that one core may be given: kernels wait for one another at barriers, and far more threads than
/// cores make no progress.
const THREADS_PER_CORE: usize = 4;

/// The host's CPU.
#[derive(Clone, Debug)]
pub struct CpuDevice {
    target: Target,
}

impl CpuDevice {
    /// The CPU with `threads` threads, at most four per core; none means all cores this process may run on.
    ///
    /// `RUSTY_ISA` (`scalar`, `avx2`, `avx512`, `neon`) lowers the instruction set below what the machine
    /// has; a set the machine lacks is ignored with a warning.
    pub fn new(threads: Option<usize>) -> Self {
        let isa = chosen(detect());
        let name = match isa {
            Isa::Scalar => "cpu-scalar",
            Isa::Avx2 => "cpu-avx2",
            Isa::Avx512 { .. } => "cpu-avx512",
            Isa::Neon { .. } => "cpu-neon",
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.unwrap_or(cores).clamp(1, THREADS_PER_CORE * cores);
        let memory_bytes = memory_bytes();
        Self {
            target: Target {
                threads,
                memory_bytes,
                ..crate::targets::cpu(name, isa)
            },
        }
    }

    /// Its facts.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Every instruction set that kernels exist for and this machine can run, best first.
    pub fn runnable() -> Vec<Isa> {
        let best = detect();
        let mut sets = vec![best];
        if matches!(best, Isa::Avx512 { .. }) {
            sets.push(Isa::Avx2);
        }
        if best != Isa::Scalar {
            sets.push(Isa::Scalar);
        }
        sets
    }
}

fn chosen(best: Isa) -> Isa {
    let Ok(wanted) = std::env::var("RUSTY_ISA") else {
        return best;
    };
    let found = CpuDevice::runnable().into_iter().find(|isa| match isa {
        Isa::Scalar => wanted == "scalar",
        Isa::Avx2 => wanted == "avx2",
        Isa::Avx512 { .. } => wanted == "avx512",
        Isa::Neon { .. } => wanted == "neon",
    });
    found.unwrap_or_else(|| {
        tracing::warn!("RUSTY_ISA={wanted} is not available on this machine; using {best:?}");
        best
    })
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if avx512 {
        Isa::Avx512 {
            vnni: is_x86_feature_detected!("avx512vnni"),
            bf16: is_x86_feature_detected!("avx512bf16"),
        }
    } else if avx2 {
        Isa::Avx2
    } else {
        Isa::Scalar
    }
}

#[cfg(target_arch = "aarch64")]
fn detect() -> Isa {
    Isa::Neon {
        dotprod: std::arch::is_aarch64_feature_detected!("dotprod"),
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect() -> Isa {
    Isa::Scalar
}

/// Memory of the machine, or of the control group that this process runs in where that is less.
pub(crate) fn memory_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text
            .lines()
            .find(|l| l.starts_with("MemTotal:"))?
            .to_string();
        line.split_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()
            .map(|kib| kib * 1024)
    });
    let group = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
    match (machine, group) {
        (Some(machine), Some(group)) => machine.min(group),
        (machine, group) => machine.or(group).unwrap_or(8 << 30),
    }
}
