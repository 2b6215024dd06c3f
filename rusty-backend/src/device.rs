//! Devices as things: what there is, and opening one.

use crate::{CpuDevice, Error, GpuDevice, Result, Target, WgpuApi};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// An opened device; cheap to clone.
#[derive(Clone, Debug)]
pub enum Device {
    /// The host's CPU.
    Cpu(CpuDevice),
    /// A GPU.
    Gpu(Arc<dyn GpuDevice>),
}

/// Which device is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The best there is: CUDA, else a hardware adapter, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An adapter of a system API: hardware before software, which is taken only so.
    Wgpu(WgpuApi),
    /// A CUDA device by its ordinal.
    Cuda(usize),
}

impl DeviceChoice {
    /// All explicit choices, the first CUDA device standing for all.
    pub const ALL: [DeviceChoice; 5] = [
        Self::Cpu,
        Self::Wgpu(WgpuApi::Vulkan),
        Self::Wgpu(WgpuApi::Metal),
        Self::Wgpu(WgpuApi::Dx12),
        Self::Cuda(0),
    ];
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Wgpu(api) => f.write_str(api.word()),
            Self::Cuda(0) => f.write_str("cuda"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        if let Some(ordinal) = word.strip_prefix("cuda:") {
            let ordinal = ordinal.parse().map_err(|_| Error::Unknown(word.into()))?;
            return Ok(Self::Cuda(ordinal));
        }
        [Self::Auto]
            .into_iter()
            .chain(Self::ALL)
            .find(|choice| choice.to_string() == word)
            .ok_or_else(|| Error::Unknown(word.into()))
    }
}

/// A device that there is, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The word that chooses it.
    pub choice: String,
    /// Name, where it is present.
    pub name: String,
    /// Whether it computes in hardware of its own; software adapters do not.
    pub hardware: bool,
    /// Its memory in bytes; 0 where not known.
    pub memory_bytes: u64,
    /// How weights reach it: read from the mapping, or copied.
    pub weights: &'static str,
    /// Why it is absent; `None` where it is present.
    pub absent: Option<String>,
}

impl DeviceInfo {
    pub(crate) fn absent(choice: DeviceChoice, reason: impl Into<String>) -> Self {
        Self {
            choice: choice.to_string(),
            name: String::new(),
            hardware: false,
            memory_bytes: 0,
            weights: "",
            absent: Some(reason.into()),
        }
    }
}

/// Looks for every kind of device; opens none.
pub fn discover() -> Vec<DeviceInfo> {
    let cpu = CpuDevice::new(None);
    let target = cpu.target();
    let mut found = vec![DeviceInfo {
        choice: DeviceChoice::Cpu.to_string(),
        name: format!("{} ({} threads)", target.name, target.threads),
        hardware: true,
        memory_bytes: target.memory_bytes,
        weights: "mapped",
        absent: None,
    }];
    found.extend(gpus::discover());
    found
}

impl Device {
    /// Opens a device; `threads` is for the CPU only.
    ///
    /// # Errors
    /// [`Error::Absent`] with what was asked and what there is.
    pub fn open(choice: &DeviceChoice, threads: Option<usize>) -> Result<Device> {
        Self::open_within(choice, threads, None)
    }

    /// Opens a device; of a GPU's memory at most `memory_limit` bytes may be used (`None`: all that is free, but for
    /// what CUDA's driver is left for itself).
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::OutOfMemory`] for 0 bytes.
    pub fn open_within(
        choice: &DeviceChoice,
        threads: Option<usize>,
        memory_limit: Option<u64>,
    ) -> Result<Device> {
        let opened = match *choice {
            DeviceChoice::Wgpu(_) | DeviceChoice::Cuda(_) if memory_limit == Some(0) => {
                return Err(Error::OutOfMemory {
                    device: choice.to_string(),
                    owner: "anything".into(),
                    asked: 1,
                    used: 0,
                    limit: 0,
                });
            }
            DeviceChoice::Auto => return Ok(Self::open_best(threads, memory_limit)),
            DeviceChoice::Cpu => return Ok(Device::Cpu(CpuDevice::new(threads))),
            DeviceChoice::Wgpu(_) | DeviceChoice::Cuda(_) => gpus::open(*choice, memory_limit),
        };
        match opened {
            Err(Error::Absent { asked, reason, .. }) => Err(Error::Absent {
                asked,
                reason,
                available: available(),
            }),
            other => other.map(Device::Gpu),
        }
    }

    fn open_best(threads: Option<usize>, memory_limit: Option<u64>) -> Device {
        let cpu = || Device::Cpu(CpuDevice::new(threads));
        if !may_have_gpu() {
            return cpu();
        }
        let present: Vec<_> = discover()
            .into_iter()
            .filter(|info| info.absent.is_none() && info.hardware)
            .collect();
        let order = [DeviceChoice::Cuda(0)]
            .into_iter()
            .chain(WgpuApi::ALL.map(DeviceChoice::Wgpu));
        for choice in order {
            if !present.iter().any(|d| d.choice == choice.to_string()) {
                continue;
            }
            match Self::open_within(&choice, threads, memory_limit) {
                Ok(device) => return device,
                Err(error) => tracing::warn!("{choice} is there but does not open: {error}"),
            }
        }
        cpu()
    }

    /// Its facts.
    pub fn target(&self) -> &Target {
        match self {
            Device::Cpu(cpu) => cpu.target(),
            Device::Gpu(gpu) => gpu.target(),
        }
    }

    /// The GPU, where it is one.
    pub fn gpu(&self) -> Option<&Arc<dyn GpuDevice>> {
        match self {
            Device::Cpu(_) => None,
            Device::Gpu(gpu) => Some(gpu),
        }
    }
}

/// Whether the system shows a node of any GPU's driver: where it shows none, asking drivers would find software at best,
/// and takes as long as opening a model. Systems without such nodes may always have one.
fn may_have_gpu() -> bool {
    const NODES: [&str; 4] = ["/dev/dri", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"];
    !cfg!(target_os = "linux") || NODES.iter().any(|node| std::path::Path::new(node).exists())
}

fn available() -> String {
    let mut words: Vec<_> = discover()
        .into_iter()
        .filter(|info| info.absent.is_none())
        .map(|info| format!("{} ({})", info.choice, info.name))
        .collect();
    words.dedup();
    words.join(", ")
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target().name)
    }
}

/// GPUs of this build.
#[cfg(feature = "gpu")]
mod gpus {
    use super::{DeviceChoice, DeviceInfo};
    use crate::{Error, GpuDevice, Result, WgpuApi, cuda, webgpu};
    use std::sync::Arc;

    pub fn discover() -> Vec<DeviceInfo> {
        let adapters = WgpuApi::ALL.into_iter().flat_map(webgpu::discover);
        adapters.chain(cuda::discover()).collect()
    }

    pub fn open(choice: DeviceChoice, memory_limit: Option<u64>) -> Result<Arc<dyn GpuDevice>> {
        match choice {
            DeviceChoice::Wgpu(api) => webgpu::open(api, memory_limit),
            DeviceChoice::Cuda(ordinal) => cuda::open(ordinal, memory_limit),
            DeviceChoice::Auto | DeviceChoice::Cpu => Err(Error::Unknown(choice.to_string())),
        }
    }
}

/// A build without GPUs says so of each.
#[cfg(not(feature = "gpu"))]
mod gpus {
    use super::{DeviceChoice, DeviceInfo};
    use crate::{Error, GpuDevice, Result};
    use std::sync::Arc;

    const REASON: &str = "this program was built without GPUs (the feature 'gpu')";

    pub fn discover() -> Vec<DeviceInfo> {
        let gpus = DeviceChoice::ALL.into_iter();
        let gpus = gpus.filter(|choice| *choice != DeviceChoice::Cpu);
        gpus.map(|choice| DeviceInfo::absent(choice, REASON))
            .collect()
    }

    pub fn open(choice: DeviceChoice, _: Option<u64>) -> Result<Arc<dyn GpuDevice>> {
        Err(Error::Absent {
            asked: choice.to_string(),
            reason: REASON.into(),
            available: String::new(),
        })
    }
}
