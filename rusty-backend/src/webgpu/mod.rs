//! GPUs through wgpu: Vulkan, Metal, Direct3D 12.
//!
//! Kernels are WGSL from our own compiler, so shader modules are made without injected bounds checks. A
//! recording is a list of pipelines with prebuilt bind groups, encoded into one compute pass per submission
//! (about a microsecond per launch); its info blocks lie in one buffer of the recording.
//!
//! A step whose results come back is one submission ([`fetch`](crate::GpuDevice::fetch)): wgpu puts the small writes before it
//! in front of the pass, and the copies to a mappable buffer follow the pass in the same encoder. There is one queue, so uploads
//! and launches take turns on the device; only the host is ahead of it.
//!
//! Within one launch wgpu tracks usage per *whole buffer*: read-write together with read-write is allowed, and so
//! is read with read, whatever the ranges; read together with read-write of one buffer is refused. So an arena
//! may be one buffer where kernels bind every slice of it alike ([`WgpuDevice`] says it at
//! [`record`](crate::GpuDevice::record), naming the launch). Between launches that write the same buffer wgpu
//! places a barrier.

mod adapters;
mod device;
mod faults;
mod modules;
mod pipelines;
mod queue;
mod read_back;
mod recording;
mod transfer;

pub(crate) use adapters::{discover, open};
pub use device::WgpuDevice;
