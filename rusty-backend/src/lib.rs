//! Devices: finding them, their facts, buffers, uploads, pipelines from kernel text and recorded launches.
//!
//! The crate knows no model and no op. [`Target`] is what a compiler may know of a device, as plain data;
//! [`Device`] is the thing itself. A GPU is a [`GpuDevice`]: memory booked by owner, pipelines made of
//! [`KernelText`], and [`Recording`]s of [`Launch`]es that are enqueued as one unit. Without the feature `gpu`, which is on by
//! default, the only device is the CPU.

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod buffer;
pub mod cache;
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod cuda;
pub mod cuda_overlap;
pub mod described;
pub mod device;
pub mod error;
pub mod gpu;
pub mod launch;
pub mod memory;
#[cfg(feature = "gpu")]
pub mod package;
mod serving;
pub mod target;
mod targets;
pub mod tensor;
#[cfg(feature = "gpu")]
pub mod webgpu;

pub use buffer::{BufferSlice, DeviceBuffer};
pub use cpu::CpuDevice;
pub use described::DescribedDevice;
pub use device::{Device, DeviceChoice, DeviceInfo, discover};
pub use error::{Error, Result};
pub use gpu::{Fetch, GpuDevice, Pending};
pub use launch::{BindingAccess, KernelText, Launch, Pipeline, Recording};
pub use memory::Owner;
pub use target::{Family, Isa, Language, Target, WgpuApi};
pub use tensor::UnifiedTensor;
