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
    /// `RUSTY_ISA` (`scalar`, `avx2`, `avxvnni`, `avx512`, `amx`, `neon`, `neondot`) lowers the instruction set below what
    /// the machine has; a set the machine lacks is ignored with a warning.
    pub fn new(threads: Option<usize>) -> Self {
        let isa = chosen(detect());
        let name = match isa {
            Isa::Scalar => "cpu-scalar",
            Isa::Avx2 { vnni: true } => "cpu-avxvnni",
            Isa::Avx2 { .. } => "cpu-avx2",
            Isa::Avx512 { amx: true, .. } => "cpu-amx",
            Isa::Avx512 { .. } => "cpu-avx512",
            Isa::Neon { dotprod: true } => "cpu-neondot",
            Isa::Neon { .. } => "cpu-neon",
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.unwrap_or(cores).clamp(1, THREADS_PER_CORE * cores);
        let memory_bytes = memory_bytes();
        Self {
            target: Target {
                threads,
                memory_bytes,
                reads_ahead: reads_ahead(),
                ..crate::targets::cpu(name, isa)
            },
        }
    }

    /// The same with at most `limit` bytes of memory: what needs more stays in its file, or is refused.
    pub fn within(mut self, limit: u64) -> Self {
        self.target.memory_bytes = self.target.memory_bytes.min(limit);
        self
    }

    /// The same taken for one whose cores do or do not [read ahead](Target::reads_ahead): weights are read in another order,
    /// and results are the same.
    pub fn reading_ahead(mut self, reads_ahead: bool) -> Self {
        self.target.reads_ahead = reads_ahead;
        self
    }

    /// Its facts.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Every instruction set that kernels exist for and this machine can run, best first.
    pub fn runnable() -> Vec<Isa> {
        let best = detect();
        let mut sets = vec![best];
        if let Isa::Avx512 { vnni, bf16, amx } = best {
            if amx {
                let amx = false;
                sets.push(Isa::Avx512 { vnni, bf16, amx });
            }
            sets.push(Isa::Avx2 {
                vnni: has_avx_vnni(),
            });
        }
        match sets.last() {
            Some(Isa::Avx2 { vnni: true }) => sets.push(Isa::Avx2 { vnni: false }),
            Some(Isa::Neon { dotprod: true }) => sets.push(Isa::Neon { dotprod: false }),
            _ => {}
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
        Isa::Avx2 { vnni: true } => wanted == "avxvnni",
        Isa::Avx2 { .. } => wanted == "avx2",
        Isa::Avx512 { amx: true, .. } => wanted == "amx",
        Isa::Avx512 { .. } => wanted == "avx512",
        Isa::Neon { dotprod: true } => wanted == "neondot",
        Isa::Neon { .. } => wanted == "neon",
    });
    found.unwrap_or_else(|| {
        tracing::warn!("RUSTY_ISA={wanted} is not available on this machine; using {best:?}");
        best
    })
}

/// Whether nothing below AMX is asked for: the system makes room for tile registers in what it saves for each signal.
#[cfg(target_arch = "x86_64")]
fn wants_tiles() -> bool {
    std::env::var("RUSTY_ISA").map_or(true, |wanted| wanted == "amx")
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
        let vnni = is_x86_feature_detected!("avx512vnni");
        Isa::Avx512 {
            vnni,
            bf16: is_x86_feature_detected!("avx512bf16"),
            amx: vnni && wants_tiles() && crate::amx::granted(),
        }
    } else if avx2 {
        let vnni = has_avx_vnni();
        Isa::Avx2 { vnni }
    } else {
        Isa::Scalar
    }
}

/// Whether `vpdpbusd` is there for machines without AVX-512.
#[cfg(target_arch = "x86_64")]
fn has_avx_vnni() -> bool {
    is_x86_feature_detected!("avxvnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx_vnni() -> bool {
    false
}

/// Whether this is a processor of AMD's from family 19h, Zen 3, on (CPUID leaves 0 and 1).
#[cfg(target_arch = "x86_64")]
fn reads_ahead() -> bool {
    use std::arch::x86_64::__cpuid;
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    let signature = __cpuid(1).eax;
    let (family, extended) = (signature >> 8 & 0xf, signature >> 20 & 0xff);
    name.as_flattened() == b"AuthenticAMD" && family + extended >= 0x19
}

#[cfg(not(target_arch = "x86_64"))]
fn reads_ahead() -> bool {
    false
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

/// Memory of the machine, or of the control groups that this process runs in where one has less.
pub(crate) fn memory_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    });
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let files = groups.lines().flat_map(limit_files);
    let limits = files.filter_map(|path| read(&path)?.trim().parse::<u64>().ok());
    let known = machine.into_iter().chain(limits);
    known.min().unwrap_or(8 << 30)
}

/// Where the limits of a line of `/proc/self/cgroup` stand: those of the group and of all around it (cgroups(7)).
fn limit_files(line: &str) -> Vec<String> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
        return vec![];
    };
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        list if list.split(',').any(|c| c == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return vec![],
    };
    let path = path.trim_end_matches('/');
    let ends = path.match_indices('/').map(|(at, _)| at);
    let around = ends.chain([path.len()]).map(|end| &path[..end]);
    around
        .map(|group| format!("{root}{group}/{file}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::limit_files;

    #[test]
    fn limits_of_all_groups_around_count() {
        assert_eq!(
            limit_files("4:cpu,memory:/a/b"),
            [
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            ]
        );
        assert_eq!(limit_files("0::/"), ["/sys/fs/cgroup/memory.max"]);
        assert!(limit_files("1:cpu:/a").is_empty() && limit_files("x").is_empty());
    }
}
