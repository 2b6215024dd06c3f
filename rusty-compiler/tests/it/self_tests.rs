//! The test of a device before a model runs on it, on one that computes right.

use crate::reference::{On, gpu};
use rusty_backend::{CpuDevice, Device};
use rusty_compiler::KvFormat;
use rusty_graph::WeightDecl;
use rusty_loader::Format;

fn weights(formats: &[&str]) -> Vec<WeightDecl> {
    let weight = |format: &&str| WeightDecl {
        name: format.to_string(),
        format: Format::by_name(format).expect("a format"),
        shape: vec![256, 256],
    };
    formats.iter().map(weight).collect()
}

/// A device that is right keeps all its facts, the first time and when it is known.
#[test]
fn right_devices_are_trusted() {
    let cpu = Device::Cpu(CpuDevice::new(Some(1)));
    let On::Gpu(gpu) = gpu() else {
        panic!("no GPU")
    };
    let weights = weights(&["f32", "q4_0"]);
    for kv in [KvFormat::F16, KvFormat::Q8_0, KvFormat::Q4_0] {
        for device in [&cpu, &gpu, &gpu] {
            let target = rusty_compiler::trusted(device, &weights, kv).expect("trusted");
            assert_eq!(target, *device.target());
        }
    }
}
