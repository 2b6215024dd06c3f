//! The GPU that tests run on; part of the tests of several crates.

use rusty_backend::{DeviceChoice, WgpuApi};

/// Vulkan, a software adapter included, or the device that `RUSTY_TEST_GPU` names.
pub fn choice() -> DeviceChoice {
    match std::env::var("RUSTY_TEST_GPU") {
        Ok(named) => named.parse().expect("RUSTY_TEST_GPU names a device"),
        Err(_) => DeviceChoice::Wgpu(WgpuApi::Vulkan),
    }
}
