//! Devices as things: what there is, and opening one.

use crate::{CpuDevice, Error, Result, Target};
use std::fmt;
use std::str::FromStr;

/// An opened device; cheap to clone.
#[derive(Clone, Debug)]
pub enum Device {
    /// The host's CPU.
    Cpu(CpuDevice),
}

/// Which device is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The best there is: CUDA, else a hardware adapter, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A Vulkan adapter, a software one included.
    Vulkan,
    /// A Metal adapter.
    Metal,
    /// A Direct3D 12 adapter.
    Dx12,
    /// The first CUDA device.
    Cuda,
}

impl DeviceChoice {
    /// All explicit choices.
    pub const ALL: [DeviceChoice; 5] =
        [Self::Cpu, Self::Vulkan, Self::Metal, Self::Dx12, Self::Cuda];

    /// The word users type.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
            Self::Cuda => "cuda",
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        let all = Self::ALL.into_iter().chain([Self::Auto]);
        all.into_iter()
            .find(|c| c.word() == word)
            .ok_or_else(|| Error::Unknown(word.into()))
    }
}

/// A device that there is, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The word that chooses it.
    pub choice: &'static str,
    /// Name, where it is present.
    pub name: String,
    /// Its memory in bytes, where known.
    pub memory_bytes: u64,
    /// Why it is absent; `None` where it is present.
    pub absent: Option<String>,
}

/// Looks for every kind of device.
pub fn discover() -> Vec<DeviceInfo> {
    let cpu = CpuDevice::new(None);
    let target = cpu.target();
    vec![DeviceInfo {
        choice: "cpu",
        name: format!("{} ({} threads)", target.name, target.threads),
        memory_bytes: target.memory_bytes,
        absent: None,
    }]
}

impl Device {
    /// Opens a device; `threads` is for the CPU only.
    pub fn open(choice: DeviceChoice, threads: Option<usize>) -> Result<Device> {
        match choice {
            DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Device::Cpu(CpuDevice::new(threads))),
            other => Err(Error::Absent {
                asked: other.word().into(),
                reason: "no such adapter was found".into(),
                available: "cpu".into(),
            }),
        }
    }

    /// Its facts.
    pub fn target(&self) -> &Target {
        match self {
            Device::Cpu(cpu) => cpu.target(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target().name)
    }
}
