//! The test of a device before a model runs on it, on one that computes right.

use crate::reference::gpu_device;
use rusty_backend::{CpuDevice, Device};
use rusty_compiler::KvFormat;

/// A device that is right keeps all its facts, the first time and when it is known.
fn check(shape: &str, format: &str, kv: KvFormat, adapted: bool) {
    let cpu = Device::Cpu(CpuDevice::new(Some(1)));
    let gpu = gpu_device();
    let file = rusty_loader::random::model(shape, format).expect("random");
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    for device in [&cpu, &gpu, &gpu] {
        let target = rusty_compiler::trusted(device, &graph, kv, adapted).expect("trusted");
        assert_eq!(target, *device.target());
    }
}

#[test]
fn right_devices_are_trusted() {
    check("qwen3-tiny", "f32", KvFormat::F16, true);
    check("llama-tiny", "q4_0", KvFormat::Q8_0, false);
    check("qwen3-tiny", "q4_k", KvFormat::Q4_0, false);
}

#[test]
fn right_devices_are_trusted_with_experts() {
    check("qwen3moe-tiny", "q4_0", KvFormat::F16, true);
}

#[test]
fn right_devices_are_trusted_with_latent_attention() {
    check("deepseek-tiny", "q8_0", KvFormat::F16, true);
    // Blocks are no format for latents: nothing to test.
    check("deepseek-tiny", "q8_0", KvFormat::Q8_0, true);
}
