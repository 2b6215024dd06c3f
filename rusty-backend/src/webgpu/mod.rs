//! GPUs through wgpu: Vulkan, Metal, Direct3D 12.

use crate::{DeviceChoice, DeviceInfo, Error, GpuDevice, Result, WgpuApi};
use std::sync::Arc;

pub(crate) fn discover(api: WgpuApi) -> Vec<DeviceInfo> {
    vec![DeviceInfo::absent(DeviceChoice::Wgpu(api), "no adapter")]
}

pub(crate) fn open(api: WgpuApi) -> Result<Arc<dyn GpuDevice>> {
    Err(Error::Absent {
        asked: api.word().into(),
        reason: "no adapter".into(),
        available: String::new(),
    })
}
