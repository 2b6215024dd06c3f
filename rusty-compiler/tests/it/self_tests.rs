//! The test of a plan's kernels on a device before it runs there: on one that computes right, and on ones that have a broken kernel.

use crate::golden_paths::golden;
use crate::reference::{SELECTED, all_logits, assert_close, bound, gpu, gpu_device};
use crate::watched_gpu::WatchedGpu;
use rusty_backend::{GpuDevice, Language, Target, cache};
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::gpu::tuner::{Effort, kept};
use rusty_compiler::plan::Implementation;
use rusty_compiler::{BindOptions, KvFormat, Result, bind_tuned, compile, replace_wrong};
use rusty_loader::ModelFile;
use rusty_loader::quantize::{Target as Quantized, quantize};
use std::cell::Cell;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

const OPTIONS: BindOptions = BindOptions {
    pages: 24,
    kv: KvFormat::F32,
    slots: 0,
};

/// A GPU of this name of which nothing is known, in floats but for what `change` makes of it.
fn unknown(name: &str, change: fn(&mut Target)) -> Arc<WatchedGpu> {
    if let Some(folder) = cache::folder() {
        let known = ["self-test", "tuned"].map(|of| fs::read_dir(folder.join(of)));
        for kept in known.into_iter().flatten().flatten().flatten() {
            if kept.file_name().to_string_lossy().starts_with(name) {
                fs::remove_dir_all(kept.path()).expect("removed");
            }
        }
    }
    WatchedGpu::new(|target| {
        target.name = name.into();
        target.f16 = false;
        target.packed_dot = false;
        target.matrix_tiles = vec![];
        change(target);
    })
}

/// Whether kernels of the tests' GPU may have halves; those of software Vulkan may.
pub(crate) fn has_halves() -> bool {
    let device = gpu_device();
    let has = device.target().f16 && device.target().language == Language::Wgsl;
    if !has {
        println!("the GPU has no half precision: nothing to test");
    }
    has
}

fn executable(gpu: &Arc<WatchedGpu>, file: &dyn ModelFile, options: BindOptions) -> GpuExecutable {
    let graph = rusty_graph::arch::build(file).expect("graph");
    let plan = compile(&graph, gpu.target()).expect("plan");
    GpuExecutable::bind(plan, file, gpu.clone(), options).expect("bound")
}

/// All kernels of a model's plan are tried once and found right; the second time they are known.
fn right(name: &str, change: fn(&mut Target), path: &str, how: (KvFormat, u32)) {
    let file = rusty_loader::open(golden(path)).expect(path);
    file_is_right(name, change, (path, &*file), how);
}

fn file_is_right(
    name: &str,
    change: fn(&mut Target),
    (path, file): (&str, &dyn ModelFile),
    (kv, slots): (KvFormat, u32),
) {
    let gpu = unknown(name, change);
    // More keys than a split has, which are more where a launch adds splits up.
    let pages = if gpu.target().orders_groups { 24 } else { 40 };
    let options = BindOptions { pages, kv, slots };
    let mut exe = executable(&gpu, file, options);
    let kernels = rusty_compiler::Executable::compiled_kernels(&exe);
    replace_wrong(&mut exe, file).expect(path);
    let excluded = &exe.plan().excluded;
    assert!(excluded.is_empty(), "{name}, {path}: {excluded:?}");
    // Each kernel at least once.
    let ran = gpu.ran();
    assert!(ran >= kernels, "{name}, {path}: {ran} of {kernels}");
    let mut exe = executable(&gpu, file, options);
    replace_wrong(&mut exe, file).expect(path);
    assert_eq!(gpu.ran(), ran, "{name}, {path}");
}

#[test]
fn kernels_of_float_models_are_right() {
    for (path, kv) in [
        ("models/qwen3-tied", KvFormat::F16),
        ("models/gemma2", KvFormat::F32),
        ("models/mistral-window", KvFormat::Bf16),
        ("models/phi3-longrope", KvFormat::F16),
        ("models/gemma3", KvFormat::F32),
        ("models/qwen2-bias", KvFormat::F16),
    ] {
        right("tested-floats", |_| {}, path, (kv, 0));
    }
}

#[test]
fn kernels_of_experts_and_latents_are_right() {
    for path in ["models/mixtral", "models/qwen3-moe", "models/deepseek-v3"] {
        right("tested-experts", |_| {}, path, (KvFormat::F16, 0));
    }
}

#[test]
fn kernels_of_block_formats_are_right() {
    let bytes: fn(&mut Target) = |t| t.packed_dot = true;
    for (path, kv) in [
        ("gguf/llama/mix-Q4_K_M.gguf", KvFormat::F16),
        ("gguf/qwen3-zoo/zoo.gguf", KvFormat::F32),
    ] {
        right("tested-blocks", |_| {}, path, (kv, 0));
        right("tested-bytes", bytes, path, (kv, 0));
    }
    // Its products of bytes make residuals first.
    let path = "models/gemma3";
    let file = rusty_loader::open(golden(path)).expect(path);
    let file = quantize(file, Quantized::Int8, &|_, _| {}).expect("quantized");
    for slots in [0, 1] {
        let how = (KvFormat::F16, slots);
        file_is_right("tested-residuals", bytes, (path, &*file), how);
    }
    for kv in [KvFormat::Q8_0, KvFormat::Q4_0] {
        right("tested-caches", |_| {}, "models/qwen3-tied", (kv, 0));
    }
}

/// Those that convert halves by an instruction, and tiles of halves.
#[test]
fn kernels_of_halves_are_right() {
    if !has_halves() {
        return;
    }
    for path in [
        "gguf/qwen3-float/F16.gguf",
        "gguf/llama/mix-Q4_K_M.gguf",
        "gguf/qwen3-zoo/zoo.gguf",
    ] {
        right("tested-halves", |t| t.f16 = true, path, (KvFormat::F16, 0));
    }
}

/// With adapters, whose first factor has a launch of its own or none; with tiles of matrix units; with planes that may be larger; without
/// planes.
#[test]
fn kernels_of_other_facts_are_right() {
    let path = "models/qwen3-tied";
    let kv = KvFormat::F16;
    right("tested-adapters", |_| {}, path, (kv, 2));
    right("tested-order", |t| t.starts_in_order = true, path, (kv, 1));
    let unordered: fn(&mut Target) = |t| t.orders_groups = false;
    right("tested-unordered", unordered, path, (kv, 0));
    let tiles: fn(&mut Target) = |t| t.matrix_tiles = vec![(16, 8, 16)];
    right("tested-tiles", tiles, "gguf/qwen3-float/BF16.gguf", (kv, 0));
    // Under CUDA planes have one size.
    let halved: fn(&mut Target) = |t| {
        if t.language == Language::Wgsl {
            t.plane_size /= 2;
        }
    };
    right("tested-larger", halved, path, (kv, 2));
    right("tested-shared", |t| t.plane_ops = false, path, (kv, 2));
}

/// Those of layers whose heads lie in two buffers, with planes, without, and on matrix units.
#[test]
fn kernels_of_heads_in_pieces_are_right() {
    let path = "models/qwen3-tied";
    let half: fn(&mut Target) = |t| t.max_binding_bytes = 48 << 10;
    right("tested-pieces", half, path, (KvFormat::F16, 0));
    let without_planes: fn(&mut Target) = |t| {
        t.max_binding_bytes = 48 << 10;
        t.plane_ops = false;
    };
    right(
        "tested-pieces-shared",
        without_planes,
        path,
        (KvFormat::F16, 0),
    );
    let tiles: fn(&mut Target) = |t| {
        t.max_binding_bytes = 48 << 10;
        t.matrix_tiles = vec![(16, 8, 16)];
    };
    right("tested-pieces-tiles", tiles, path, (KvFormat::Bf16, 0));
    let codes: fn(&mut Target) = |t| t.max_binding_bytes = 32 << 10;
    right("tested-pieces-codes", codes, path, (KvFormat::Q8_0, 0));
}

/// A model on a GPU with a broken kernel, and what it does without.
fn replaced(gpu: &Arc<WatchedGpu>, file: &dyn ModelFile) -> Result<GpuExecutable> {
    let mut exe = executable(gpu, file, OPTIONS);
    replace_wrong(&mut exe, file)?;
    Ok(exe)
}

/// The kernel that is broken is found, named and replaced, and remembered: logits are those of a right device.
fn finds(broken: &Arc<WatchedGpu>, file: &dyn ModelFile, names: &[&str]) -> GpuExecutable {
    let mut exe = replaced(broken, file).expect("others");
    let excluded = exe.plan().excluded.clone();
    let of_names = |name: &&str| excluded.iter().any(|e| e.variant == *name);
    assert!(names.iter().all(of_names), "{excluded:?}");
    assert!(
        excluded.iter().all(|e| names.contains(&e.variant)),
        "{excluded:?}"
    );
    let ran = broken.ran();
    assert!(ran > 10, "{ran}");
    let again = replaced(broken, file).expect("others");
    assert_eq!(again.plan().excluded, excluded);
    assert_eq!(broken.ran(), ran);
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 250).collect();
    let pages: Vec<u32> = (0..24).rev().collect();
    let mut right = bound(file, &gpu(), KvFormat::F32, 1);
    for chunk in [1, 3, SELECTED] {
        let have = all_logits(&mut exe, &ids, chunk, &pages);
        let want = all_logits(&mut *right, &ids, chunk, &pages).concat();
        assert_close(&format!("by {chunk}"), &have, &want, 1e-3);
    }
    exe
}

#[test]
fn broken_products_of_bytes_are_replaced() {
    let gpu = unknown("broken-bytes", |t| t.packed_dot = true);
    gpu.break_kernels(|text| {
        ["dot4I8Packed", "__dp4a"]
            .iter()
            .any(|w| text.source.contains(w))
    });
    let file = rusty_loader::random::model("qwen3-tiny", "q4_0").expect("random");
    let exe = finds(&gpu, &*file, &["gemv_bytes", "gemv_rows_bytes"]);
    let excluded = &exe.plan().excluded;
    assert!(excluded.iter().all(|e| e.of.contains("q")), "{excluded:?}");
    let mut variants = exe.plan().kernels.iter().flat_map(|k| &k.variants);
    assert!(!variants.any(|v| v.implementation == Implementation::GemvBytes));
}

#[test]
fn broken_attention_of_rows_is_replaced() {
    let gpu = unknown("broken-rows", |_| {});
    gpu.break_kernels(|text| text.entry == "rusty_row_attention");
    let file = rusty_loader::open(golden("models/qwen3-tied")).expect("golden");
    finds(&gpu, &*file, &["row_attention"]);
}

/// No layer of the model has a norm before products but what they make first, which units meet twice more for.
#[test]
fn broken_residuals_are_replaced() {
    let gpu = unknown("broken-residuals", |_| {});
    gpu.break_kernels(|text| {
        let meetings = text.source.matches("workgroupBarrier").count();
        text.entry == "rusty_gemv" && text.source.contains("inverseSqrt") && meetings > 3
    });
    let file = rusty_loader::open(golden("models/olmo2")).expect("golden");
    finds(&gpu, &*file, &["first_inside"]);
}

/// The launches that make residuals for several rows, and heads of attention.
#[test]
fn broken_launches_of_what_comes_first_are_replaced() {
    let gpu = unknown("broken-first", |_| {});
    gpu.break_kernels(|text| {
        let by_planes = text.source.contains("subgroup");
        text.entry == "rusty_rows" && by_planes && text.source.contains("inverseSqrt")
    });
    let file = rusty_loader::open(golden("models/gemma3")).expect("golden");
    // Those of the last layer are a kernel of their own.
    finds(&gpu, &*file, &["first_plane", "rows_plane"]);
}

#[test]
fn broken_tiles_of_halves_are_replaced() {
    if !has_halves() {
        return;
    }
    let gpu = unknown("broken-half-tiles", |t| t.f16 = true);
    gpu.break_kernels(|text| text.source.contains("enable f16;"));
    let file = rusty_loader::open(golden("gguf/qwen3-float/F16.gguf")).expect("golden");
    let exe = finds(&gpu, &*file, &["half_tiles"]);
    assert!(exe.plan().target.f16);
}

/// Kernels of all kinds have the instruction: without it others need not be left out.
#[test]
fn broken_conversions_of_halves_are_replaced() {
    if !has_halves() {
        return;
    }
    let gpu = unknown("broken-conversions", |t| t.f16 = true);
    gpu.break_kernels(|text| text.source.contains("half_value("));
    let file = rusty_loader::open(golden("gguf/qwen3-float/F16.gguf")).expect("golden");
    let exe = finds(&gpu, &*file, &["halves"]);
    assert!(!exe.plan().target.f16);
}

/// A kernel that takes the device with it is left out by the next process.
#[test]
fn kernels_that_lose_the_device_are_remembered() {
    let gpu = unknown("lost-rows", |_| {});
    gpu.lose_by("rusty_row_attention");
    let file = rusty_loader::open(golden("models/qwen3-tied")).expect("golden");
    let lost = replaced(&gpu, &*file).err().expect("lost").to_string();
    assert!(lost.contains("lost"), "{lost}");
    finds(&gpu, &*file, &["row_attention"]);
}

#[test]
fn devices_without_a_right_kernel_are_refused() {
    let gpu = unknown("broken-tiles", |_| {});
    gpu.break_kernels(|text| text.entry == "rusty_gemm");
    let file = rusty_loader::open(golden("models/qwen3-tied")).expect("golden");
    let refused = replaced(&gpu, &*file).err().expect("nothing is left");
    let said = refused.to_string();
    assert!(said.contains("driver") && said.contains("rows"), "{said}");
}

/// The next process finds what was measured without broken kernels, and nobody takes it for a plan that has them.
#[test]
fn what_is_measured_without_broken_kernels_is_found_again() {
    let gpu = unknown("tuned-without-rows", |_| {});
    gpu.break_kernels(|text| text.entry == "rusty_row_attention");
    is_measured_once(&gpu, "row_attention");
    if has_halves() {
        let gpu = unknown("tuned-without-halves", |t| t.f16 = true);
        gpu.break_kernels(|text| text.source.contains("half_value("));
        is_measured_once(&gpu, "halves");
    }
}

/// Measures all that there is.
const THOROUGH: Effort = Effort {
    least_bytes: 0,
    fewest_cubes: 1,
    repetitions: 1,
    limit: Duration::from_secs(3600),
};

/// Where the device is lost while kernels are measured, the next process takes them as they were chosen.
#[test]
fn nothing_is_measured_again_that_lost_the_device() {
    let gpu = unknown("tuned-lost", |_| {});
    let path = "models/qwen3-tied";
    let file = rusty_loader::open(golden(path)).expect(path);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let plan = compile(&graph, gpu.target()).expect("plan");
    let device: Arc<dyn GpuDevice> = gpu.clone();
    let start = |progress: &dyn Fn(u64, u64)| {
        bind_tuned(plan.clone(), &*file, &device, &OPTIONS, &THOROUGH, progress)
    };
    gpu.lose_behind(12);
    let measured = Cell::new(0);
    let lost = start(&|done, _| measured.set(done)).err().expect("lost");
    assert!(lost.to_string().contains("lost"), "{lost}");
    assert!(measured.get() > 0, "lost before");
    gpu.lose_behind(usize::MAX);
    let again = start(&|_, _| panic!("measured again")).expect("as chosen");
    assert_eq!(again.plan().tuning, plan.tuning);
}

fn is_measured_once(gpu: &Arc<WatchedGpu>, variant: &str) {
    let path = "gguf/qwen3-float/F16.gguf";
    let file = rusty_loader::open(golden(path)).expect(path);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let plan = compile(&graph, gpu.target()).expect("plan");
    let device: Arc<dyn GpuDevice> = gpu.clone();
    let start = |progress: &dyn Fn(u64, u64)| {
        let tuned = bind_tuned(plan.clone(), &*file, &device, &OPTIONS, &THOROUGH, progress);
        tuned.expect(variant)
    };
    let measured = Cell::new(0);
    let first = start(&|done, _| measured.set(done));
    assert!(measured.get() > 10, "{variant}: {}", measured.get());
    let excluded = &first.plan().excluded;
    assert!(
        excluded.iter().any(|e| e.variant == variant),
        "{excluded:?}"
    );
    let again = start(&|_, _| panic!("{variant}: measured again"));
    assert_eq!(again.plan().tuning, first.plan().tuning, "{variant}");
    assert_eq!(again.plan().excluded, *excluded, "{variant}");
    assert_eq!(kept(&plan, &OPTIONS, &THOROUGH), None, "{variant}");
}
