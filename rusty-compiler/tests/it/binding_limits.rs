//! GPUs that bind less at once than a model's matrices take: those are cut into chunks of rows, and no bit changes.

use crate::adapted_rows::{PAGES, attach, logits};
use crate::golden_paths::golden;
use crate::reference::gpu_device;
use crate::watched_gpu::WatchedGpu;
use rusty_backend::GpuDevice;
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::{BindOptions, KvFormat, compile};
use rusty_loader::ModelFile;
use std::sync::Arc;

/// Bytes of a binding: less than projections, heads and embeddings of small models take, and than 64 rows of some.
const LIMIT: u64 = 32 << 10;

/// The tests' GPU as one that binds no more than so many bytes.
fn narrow(limit: u64) -> Arc<WatchedGpu> {
    WatchedGpu::new(|target| target.max_binding_bytes = limit)
}

/// All weights lie in buffers that can be bound, and each of the `cut` ones in several.
fn check(gpu: &WatchedGpu, limit: u64, cut: &[&str]) {
    let buffers = gpu.weights();
    for (label, bytes) in &buffers {
        assert!(*bytes <= limit, "{label}: {bytes} bytes");
    }
    for name in cut {
        let chunks = buffers.iter().filter(|(label, _)| label == name).count();
        assert!(chunks > 1, "{name}: {chunks} chunks");
    }
}

fn gpu() -> Arc<dyn GpuDevice> {
    gpu_device().gpu().expect("a GPU").clone()
}

/// A model on a device, an adapter in each slot.
fn bound(
    file: &dyn ModelFile,
    device: Arc<dyn GpuDevice>,
    options: BindOptions,
) -> rusty_compiler::Result<GpuExecutable> {
    let graph = rusty_graph::arch::build(file).expect("graph");
    let plan = compile(&graph, device.target()).expect("plan");
    let mut exe = GpuExecutable::bind(plan, file, device, options)?;
    attach(&mut exe, &graph, options.slots);
    Ok(exe)
}

/// Projections, those of one input and those that one tail reads together, heads, embeddings and experts; with adapters, too.
#[test]
fn matrices_that_no_binding_takes_are_cut_and_change_no_bit() {
    let gpu = gpu();
    for (path, slots, limit, cut) in [
        (
            "models/qwen3-tied",
            1,
            LIMIT,
            [
                "token_embd.weight",
                "blk.0.attn_q.weight",
                "blk.0.ffn_gate.weight",
            ],
        ),
        (
            "gguf/llama/mix-Q4_K_M.gguf",
            0,
            LIMIT,
            ["token_embd.weight", "output.weight", "blk.0.attn_q.weight"],
        ),
        (
            "models/mixtral",
            1,
            LIMIT,
            [
                "token_embd.weight",
                "blk.0.ffn_gate_exps.0.weight",
                "blk.0.ffn_down_exps.0.weight",
            ],
        ),
        // Each of several launches makes residuals first.
        (
            "models/gemma3",
            1,
            12 << 10,
            [
                "token_embd.weight",
                "blk.0.ffn_gate.weight",
                "blk.1.attn_q.weight",
            ],
        ),
    ] {
        let file = rusty_loader::open(golden(path)).expect(path);
        let options = BindOptions {
            pages: PAGES,
            kv: KvFormat::F16,
            slots,
        };
        let mut whole = bound(&*file, gpu.clone(), options).expect("bound");
        let narrow = narrow(limit);
        let mut chunked = bound(&*file, narrow.clone(), options).expect("bound");
        check(&narrow, limit, &cut);
        // A few rows are cut as one is.
        let few = (path == "models/qwen3-tied").then_some(3);
        for rows in [62, 1].into_iter().chain(few) {
            let want = logits(&mut whole, rows, slots);
            let have = logits(&mut chunked, rows, slots);
            assert!(have == want, "{path}, by {rows}");
        }
    }
}

/// Of keys and values a head is one binding: contexts that are too long for that are refused with ways out.
#[test]
fn contexts_that_no_binding_takes_a_head_of_are_refused() {
    for path in ["models/qwen3-tied", "models/deepseek-v3"] {
        let file = rusty_loader::open(golden(path)).expect(path);
        let options = BindOptions {
            pages: 20,
            kv: KvFormat::F32,
            slots: 0,
        };
        let refused = bound(&*file, narrow(LIMIT), options);
        let text = refused.err().expect("too long").to_string();
        for said in [
            "layer 0",
            "320 tokens",
            "each key/value head",
            "shorter context",
            "fewer bits",
        ] {
            assert!(text.contains(said), "{path}: {text}");
        }
    }
}
