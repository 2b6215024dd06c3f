//! Whole models by CUDA's kernels, which run [on the host](crate::host_cuda), against kernels of another language: matrix units,
//! asynchronous copies, products of bytes and shuffles of planes as CUDA has them.

use crate::adapted_rows::{TOKENS, attach, logits_of};
use crate::golden_paths::golden;
use crate::host_cuda::HostCuda;
use crate::matrix_units::in_singles;
use crate::reference::{distance, gpu_device, mean_kl};
use rusty_backend::GpuDevice;
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::plan::{ContractionFamily, Teams, Tuning};
use rusty_compiler::{BindOptions, KvFormat, compile};
use rusty_loader::ModelFile;
use rusty_loader::quantize::{Target as Quantized, quantize};
use std::sync::Arc;

/// A model on a device, `slots` of it with an adapter.
fn bound(
    file: &dyn ModelFile,
    device: Arc<dyn GpuDevice>,
    kv: KvFormat,
    slots: u32,
) -> GpuExecutable {
    let graph = rusty_graph::arch::build(file).expect("graph");
    let plan = compile(&graph, device.target()).expect("plan");
    let options = BindOptions {
        pages: 24,
        kv,
        slots,
    };
    let mut exe = GpuExecutable::bind(plan, file, device, options).expect("bind");
    attach(&mut exe, &graph, slots);
    exe
}

/// The smallest, the middle and the largest tile of matrix units for all steps of several rows.
fn tilings() -> [Tuning; 3] {
    let of = |small, middle| Tuning {
        gemv_rows: 1,
        small_tile_rows: small,
        middle_tile_rows: middle,
        large_tile_lanes: 0,
        ..Tuning::default()
    };
    [of(256, 256), of(1, 256), of(1, 1)]
}

/// A model in one way: storage of keys and values, adapter slots, rows of the prompt and of a step, with what tiles.
struct Way {
    kv: KvFormat,
    slots: u32,
    rows: usize,
    chunk: usize,
    tunings: Vec<Tuning>,
}

impl Way {
    /// Chunks of 62 rows, and the 13 behind them.
    fn prompt(kv: KvFormat, tunings: &[Tuning]) -> Self {
        Self {
            kv,
            slots: 0,
            rows: TOKENS as usize,
            chunk: 62,
            tunings: tunings.to_vec(),
        }
    }

    /// The first rows one by one: without an adapter, with it and without again, by kernels for each.
    fn alone(kv: KvFormat, tunings: &[Tuning]) -> Self {
        Self {
            slots: 1,
            rows: 24,
            chunk: 1,
            ..Self::prompt(kv, tunings)
        }
    }
}

/// `most` are bounds of the root mean square and of the mean KL divergence.
fn agrees(path: &str, way: &Way, most: (f64, f64)) {
    let file = rusty_loader::open(golden(path)).expect(path);
    file_agrees(path, &*file, way, most);
}

fn file_agrees(path: &str, file: &dyn ModelFile, way: &Way, most: (f64, f64)) {
    let other = gpu_device().gpu().expect("a GPU").clone();
    let logits = |exe: &mut GpuExecutable| logits_of(exe, way.rows, way.chunk, way.slots);
    let want = logits(&mut bound(file, other, way.kv, way.slots));
    let mut exe = bound(file, HostCuda::new(), way.kv, way.slots);
    for tuning in &way.tunings {
        exe.retune(tuning.clone()).expect("tuned");
        let have = logits(&mut exe);
        let (rms, _) = distance(&have, &want);
        let kl = mean_kl(&have, &want, way.rows);
        let said = format!(
            "{path}, {:?}, by {}: rms {rms}, mean KL {kl}",
            way.kv, way.chunk
        );
        println!("{said}");
        assert!(rms > 0.0 && rms < most.0 && kl < most.1, "{said}");
    }
}

#[test]
fn tiles_of_matrix_units_agree() {
    for (path, most) in [
        ("gguf/qwen3-float/BF16.gguf", (0.05, 1.5e-3)),
        ("gguf/qwen3-float/F16.gguf", (0.008, 4e-5)),
        ("gguf/llama/mix-Q4_K_M.gguf", (0.05, 1.5e-3)),
    ] {
        agrees(path, &Way::prompt(KvFormat::F32, &tilings()), most);
    }
}

#[test]
fn experts_on_matrix_units_agree() {
    let way = Way::prompt(KvFormat::F32, &[Tuning::default()]);
    for (shape, format) in [("qwen3moe-tiny", "bf16"), ("qwen3moe-tiny", "q4_0")] {
        let file = rusty_loader::random::model(shape, format).expect(shape);
        let name = format!("{shape} {format}");
        file_agrees(&name, &*file, &way, (0.05, 1.5e-3));
    }
}

/// Groups that divide no tile, softcaps, windows, values that are the first lanes of keys, and every storage; contractions are in single precision.
#[test]
fn attention_on_matrix_units_agrees() {
    let (halves, codes) = ((0.004, 1e-5), (0.02, 1e-4));
    for (path, kv, most) in [
        ("models/qwen3-tied", KvFormat::F16, halves),
        ("models/qwen3-untied-bf16", KvFormat::F16, halves),
        ("models/qwen3-tied", KvFormat::Bf16, (0.03, 5e-4)),
        ("models/qwen3-tied", KvFormat::Q8_0, codes),
        ("models/mistral-window", KvFormat::Q4_0, (0.15, 5e-3)),
        ("models/gemma2", KvFormat::F16, halves),
        ("models/deepseek-v2", KvFormat::F16, halves),
    ] {
        let file = in_singles(rusty_loader::open(golden(path)).expect(path));
        let way = Way::prompt(kv, &[Tuning::default()]);
        file_agrees(path, &file, &way, most);
    }
}

/// Inputs that adapters change are packed for each part.
#[test]
fn tiles_with_adapters_agree() {
    let way = Way {
        slots: 1,
        ..Way::prompt(KvFormat::F32, &tilings())
    };
    agrees("gguf/qwen3-float/BF16.gguf", &way, (0.05, 1.5e-3));
}

/// Decoding: products of bytes and of floats, in guessed teams and in such as ask for weights before they wait for the launches before
/// them.
#[test]
fn single_rows_agree() {
    for (path, kv) in [
        ("gguf/llama/mix-Q4_K_M.gguf", KvFormat::F16),
        ("gguf/qwen3-float/BF16.gguf", KvFormat::Q8_0),
    ] {
        let file = rusty_loader::open(golden(path)).expect(path);
        let way = Way::alone(kv, &[Tuning::default(), all_ahead(&*file)]);
        file_agrees(path, &*file, &way, (0.05, 1.5e-3));
    }
}

/// The same of a model whose products make residuals first, in floats, which ask ahead, and in bytes.
#[test]
fn single_rows_of_residuals_agree() {
    let path = "models/gemma3";
    let floats = rusty_loader::open(golden(path)).expect(path);
    let way = Way::alone(KvFormat::F16, &[all_ahead(&*floats)]);
    file_agrees(path, &*floats, &way, (0.004, 1e-5));
    let bytes = quantize(floats, Quantized::Int8, &|_, _| {}).expect("quantized");
    let way = Way::alone(KvFormat::F16, &[Tuning::default(), all_ahead(&*bytes)]);
    file_agrees(path, &*bytes, &way, (0.05, 1.5e-3));
}

/// A tuning of a model's matrix-vector products that all ask ahead.
fn all_ahead(file: &dyn ModelFile) -> Tuning {
    let graph = rusty_graph::arch::build(file).expect("graph");
    let plan = compile(&graph, HostCuda::new().target()).expect("plan");
    let anchors = plan.kernels.iter().map(|k| &k.anchor);
    let families = anchors.filter_map(|a| ContractionFamily::of(&plan, a));
    families.fold(Tuning::default(), |tuning, family| {
        let teams = Teams {
            ahead: true,
            ..Teams::guess(&family)
        };
        tuning.with(&family, teams)
    })
}
