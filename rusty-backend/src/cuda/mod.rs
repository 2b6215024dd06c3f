//! NVIDIA GPUs through the driver and NVRTC, both found at run time.

use crate::{DeviceChoice, DeviceInfo, Error, GpuDevice, Result};
use std::sync::Arc;

pub(crate) fn discover() -> Vec<DeviceInfo> {
    vec![DeviceInfo::absent(DeviceChoice::Cuda(0), "no driver")]
}

pub(crate) fn open(ordinal: usize) -> Result<Arc<dyn GpuDevice>> {
    Err(Error::Absent {
        asked: DeviceChoice::Cuda(ordinal).to_string(),
        reason: "no driver".into(),
        available: String::new(),
    })
}
