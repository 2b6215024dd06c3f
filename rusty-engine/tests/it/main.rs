//! The engine on golden data and on the demo model: samplers, adapters, sessions.

mod adapter_files;
mod adapter_oddities;
mod adapter_tools;
mod adapters;
mod batches;
mod demo;
mod experts;
#[path = "../../../tests/gguf_twin.rs"]
mod gguf_twin;
mod residency;
mod samplers;
mod sessions;
mod stored_otherwise;

use rusty_backend::{DeviceChoice, WgpuApi};
use rusty_compiler::KvFormat;
use rusty_engine::{Engine, EngineOptions};
use std::path::PathBuf;

/// The CPU and the Vulkan adapter, a software one included.
const DEVICES: [DeviceChoice; 2] = [DeviceChoice::Cpu, DeviceChoice::Wgpu(WgpuApi::Vulkan)];

/// A file or folder of the goldens, or of the models beside them.
fn golden(path: &str) -> PathBuf {
    let tests = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests"));
    let found = tests.join("goldens").join(path);
    match path.strip_prefix("models/").filter(|_| !found.exists()) {
        Some(model) => tests.join("architectures").join(model),
        None => found,
    }
}

fn engine(model: &str, device: DeviceChoice, kv: KvFormat) -> Engine {
    let file = rusty_loader::open(golden(model)).expect(model);
    let options = EngineOptions {
        device,
        kv,
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*file, &options).expect(model);
    engine.keep_base(file.into());
    engine
}

fn demo(options: &EngineOptions) -> Engine {
    let file = rusty_engine::demo::model().expect("demo");
    Engine::load(&*file, options).expect("demo")
}
