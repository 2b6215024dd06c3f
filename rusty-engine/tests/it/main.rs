//! The engine on golden data and on the demo model: samplers, adapters, sessions.

mod adapter_files;
mod adapter_misfits;
mod adapter_oddities;
mod adapter_tools;
mod adapters;
mod batches;
mod demo;
#[path = "../../../tests/expected.rs"]
mod expected;
mod experts;
#[path = "../../../tests/gguf_twin.rs"]
mod gguf_twin;
#[path = "../../../tests/golden_paths.rs"]
mod golden_paths;
mod llama_cpp_adapters;
mod manifests;
mod out_of_memory;
mod peft_adapters;
mod residency;
mod running_ahead;
mod samplers;
mod sessions;
mod small_adapters;
mod soft_prompts;
mod stored_otherwise;
#[path = "../../../tests/test_gpu.rs"]
mod test_gpu;
mod tiers;
mod turns;
mod warnings;

use golden_paths::golden;
use rusty_backend::DeviceChoice;
use rusty_compiler::KvFormat;
use rusty_engine::{AdapterSet, Engine, EngineOptions};
use rusty_loader::safetensors::SafetensorsFile;
use std::collections::BTreeMap;
use std::path::Path;

/// The CPU and a GPU.
fn devices() -> [DeviceChoice; 2] {
    [DeviceChoice::Cpu, test_gpu::choice()]
}

fn engine(model: &str, device: DeviceChoice, kv: KvFormat) -> Engine {
    open_on(&golden(model), device, kv)
}

/// An engine that knows the file that it came from.
fn open_on(path: &Path, device: DeviceChoice, kv: KvFormat) -> Engine {
    let file = rusty_loader::open(path).expect("model");
    let options = EngineOptions {
        // References are single precision.
        single_precision: true,
        device,
        kv,
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*file, &options).expect("engine");
    engine.keep_base(file.into());
    engine
}

/// The CPU, for eight sessions.
fn cpu() -> EngineOptions {
    EngineOptions {
        // References are single precision.
        single_precision: true,
        device: DeviceChoice::Cpu,
        sessions: 8,
        ..EngineOptions::default()
    }
}

fn demo(options: &EngineOptions) -> Engine {
    let file = rusty_engine::demo::model().expect("demo");
    Engine::load(&*file, options).expect("demo")
}

/// An engine on the CPU, with single precision in its cache.
fn open(path: &Path) -> Engine {
    open_on(path, DeviceChoice::Cpu, KvFormat::F32)
}

/// Logits of a dozen tokens.
fn logits(engine: &Engine, set: impl Into<AdapterSet>) -> Vec<f32> {
    let tokens: Vec<u32> = (0..12).map(|i| i * 13 % 200).collect();
    engine.logits(&tokens, set).expect("logits")
}

/// Shapes and values of tensors by name.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// All tensors of a safetensors file.
fn tensors(path: &Path) -> Tensors {
    let file = SafetensorsFile::open(path).expect("safetensors");
    let names: Vec<String> = file.names().map(str::to_string).collect();
    let read = |name: String| {
        let view = file.tensor(&name).expect("tensor");
        let mut values = vec![0.0; view.elements()];
        view.format.decode_row(&view.bytes, &mut values);
        (name, (view.shape, values))
    };
    names.into_iter().map(read).collect()
}
