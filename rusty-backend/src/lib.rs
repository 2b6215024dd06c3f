//! Devices: finding them, their facts, buffers, uploads, pipelines from kernel text and recorded launches.
//!
//! The crate knows no model and no op. [`Target`] is what a compiler may know of a device, as plain data;
//! [`Device`] is the thing itself.

pub mod cpu;
pub mod device;
pub mod error;
pub mod target;
mod targets;

pub use cpu::CpuDevice;
pub use device::{Device, DeviceChoice, DeviceInfo, discover};
pub use error::{Error, Result};
pub use target::{Family, Isa, Language, Target, WgpuApi};
