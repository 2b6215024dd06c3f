//! Layers whose keys and values no binding takes: their heads lie in several buffers, and no bit changes.

use crate::decoding::{PAGES, all_steps, fill};
use crate::golden_paths::golden;
use crate::watched_gpu::WatchedGpu;
use rusty_backend::{GpuDevice, Owner, Target};
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::{
    BindOptions, Executable, KvFormat, KvPrefix, PrefixLayer, RowResult, Sequence, SlotId, Step,
    Want, compile,
};
use rusty_loader::meta::keys;
use rusty_loader::{Format, LoadedModel, Meta, ModelFile, SharedBytes, WeightView};
use std::sync::Arc;

/// What a GPU says of itself.
type Facts = fn(&mut Target);

const FLOATS: Facts = |t| *t = t.in_single_precision();
const WITHOUT_PLANES: Facts = |t| {
    *t = t.in_single_precision();
    t.plane_ops = false;
};
/// A launch adds up what splits of rows leave.
const WITHOUT_ORDER: Facts = |t| {
    *t = t.in_single_precision();
    t.orders_groups = false;
};
/// Tiles of attention run on what stands for matrix units.
const MATRIX_UNITS: Facts = |t| {
    *t = t.in_single_precision();
    t.matrix_tiles = vec![(16, 8, 16)];
};

/// A model on a GPU of some facts that binds at most `limit` bytes.
fn bound(
    file: &dyn ModelFile,
    kv: KvFormat,
    facts: Facts,
    limit: u64,
) -> (Arc<WatchedGpu>, GpuExecutable) {
    let gpu = WatchedGpu::new(|target| {
        facts(target);
        target.max_binding_bytes = target.max_binding_bytes.min(limit);
    });
    let graph = rusty_graph::arch::build(file).expect("graph");
    let plan = compile(&graph, gpu.target()).expect("plan");
    let options = BindOptions {
        pages: PAGES,
        kv,
        slots: 0,
    };
    let exe = GpuExecutable::bind(plan, file, gpu.clone(), options).expect("bound");
    (gpu, exe)
}

/// Labels and bytes of the buffers of keys and values.
fn pages_of(gpu: &WatchedGpu) -> Vec<(String, u64)> {
    let made = gpu.made().into_iter();
    let pages = made.filter(|made| made.owner == Owner::Kv);
    pages.map(|made| (made.label, made.bytes)).collect()
}

/// A model whose layers are one buffer each, and the same on a GPU that takes a `pieces`-th of one.
fn whole_and_cut(
    file: &dyn ModelFile,
    kv: KvFormat,
    facts: Facts,
    pieces: u64,
) -> (GpuExecutable, GpuExecutable) {
    let (gpu, whole) = bound(file, kv, facts, u64::MAX);
    let layers = pages_of(&gpu);
    let limit = layers[0].1 / pieces;
    let (narrow, cut) = bound(file, kv, facts, limit);
    let buffers = pages_of(&narrow);
    assert_eq!(buffers.len(), layers.len() * pieces as usize);
    assert!(buffers.iter().all(|(_, bytes)| *bytes == limit));
    assert_eq!(buffers[1].0, "kv.0.1");
    assert_eq!(cut.memory().kv, whole.memory().kv);
    (whole, cut)
}

fn opened(path: &str) -> Box<dyn ModelFile> {
    rusty_loader::open(golden(path)).expect(path)
}

/// Rows alone whose keys are split and not, tiles beside them, runs of a few rows.
fn check_file(file: &dyn ModelFile, kv: KvFormat, facts: Facts, pieces: u64) {
    let (mut whole, mut cut) = whole_and_cut(file, kv, facts, pieces);
    fill(&mut whole);
    fill(&mut cut);
    let want = all_steps(&mut whole);
    let said = format!("{}, {kv:?}, {pieces} pieces", file.label());
    assert!(want.iter().flatten().any(|l| *l != 0.0), "{said}");
    assert!(all_steps(&mut cut) == want, "{said}");
}

fn check(path: &str, kv: KvFormat, facts: Facts, pieces: u64) {
    check_file(&*opened(path), kv, facts, pieces);
}

#[test]
fn heads_in_several_buffers_change_no_bit() {
    // Bf16 lies as halves do, blocks of eight bits as those of four: matrix units have the one, GPUs without planes the other.
    for kv in [KvFormat::F16, KvFormat::Q4_0] {
        check("models/qwen3-tied", kv, FLOATS, 2);
    }
    check("models/qwen3-tied", KvFormat::F16, WITHOUT_ORDER, 2);
    // Windows and caps of scores; more buffers; several heads in one.
    check("models/gemma2", KvFormat::F32, FLOATS, 2);
    check("models/llama-mha-f16", KvFormat::F16, FLOATS, 4);
    check("models/llama-mha-f16", KvFormat::F32, FLOATS, 2);
}

/// A model of one layer with heads so wide that, on planes of eight units, a cube of rows alone takes one of a key's two query heads.
fn of_wide_heads() -> LoadedModel {
    const WIDTH: usize = 64;
    const HEAD: usize = 128;
    let tensor = |(seed, (name, rows, columns)): (u32, (&str, usize, usize))| {
        let hash = |i: u32| (seed * 7919 + i).wrapping_mul(2_654_435_761) >> 8;
        let lane = |i| 0.3 * (hash(i) as f32 / (1 << 23) as f32 - 1.0);
        let lanes = 0..(rows * columns) as u32;
        let view = WeightView {
            bytes: SharedBytes::from_vec(lanes.flat_map(|i| lane(i).to_le_bytes()).collect()),
            format: Format::F32,
            shape: match rows {
                1 => vec![columns],
                _ => vec![rows, columns],
            },
        };
        (format!("{name}.weight"), view)
    };
    let tensors = [
        ("token_embd", 256, WIDTH),
        ("output_norm", 1, WIDTH),
        ("blk.0.attn_norm", 1, WIDTH),
        ("blk.0.ffn_norm", 1, WIDTH),
        ("blk.0.attn_q", 4 * HEAD, WIDTH),
        ("blk.0.attn_k", 2 * HEAD, WIDTH),
        ("blk.0.attn_v", 2 * HEAD, WIDTH),
        ("blk.0.attn_output", WIDTH, 4 * HEAD),
        ("blk.0.ffn_gate", 96, WIDTH),
        ("blk.0.ffn_up", 96, WIDTH),
        ("blk.0.ffn_down", WIDTH, 96),
    ];
    let sizes = [
        (keys::BLOCK_COUNT, 1),
        (keys::CONTEXT_LENGTH, 1024),
        (keys::EMBEDDING_LENGTH, WIDTH),
        (keys::FEED_FORWARD_LENGTH, 96),
        (keys::HEAD_COUNT, 4),
        (keys::HEAD_COUNT_KV, 2),
        (keys::KEY_LENGTH, HEAD),
        (keys::VALUE_LENGTH, HEAD),
        (keys::VOCAB_SIZE, 256),
    ];
    let sizes = sizes.map(|(key, size)| (key, Meta::U64(size as u64)));
    let others = [
        (keys::RMS_EPSILON, Meta::F64(1e-6)),
        (keys::ROPE_FREQ_BASE, Meta::F64(1e4)),
        (keys::ROPE_LAYOUT, "half".into()),
        (keys::TIE_WORD_EMBEDDINGS, Meta::Bool(true)),
    ];
    let meta = sizes.into_iter().chain(others);
    let meta = meta.map(|(key, value)| (key.to_owned(), value)).collect();
    let tensors = (0..).zip(tensors).map(tensor).collect();
    LoadedModel::new("wide heads", "llama", meta, tensors)
}

#[test]
fn shared_heads_in_several_buffers_change_no_bit() {
    check_file(&of_wide_heads(), KvFormat::F16, FLOATS, 2);
}

/// Rows alone are tiles of one, and a map of its own makes heads.
#[test]
fn heads_in_several_buffers_change_no_bit_without_planes() {
    check("models/qwen3-tied", KvFormat::Q8_0, WITHOUT_PLANES, 2);
    check("models/llama-mha-f16", KvFormat::F16, WITHOUT_PLANES, 2);
}

#[test]
fn heads_in_several_buffers_change_no_bit_on_matrix_units() {
    check("models/qwen3-tied", KvFormat::Bf16, MATRIX_UNITS, 2);
    check("models/llama-mha-f16", KvFormat::F16, MATRIX_UNITS, 2);
}

/// Logits of some tokens behind so many.
fn behind(exe: &mut GpuExecutable, first: u32, pages: &[u32]) -> Vec<(u32, RowResult)> {
    let tokens: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 250).collect();
    let step = Step {
        tokens: &tokens,
        positions: &(first..first + 20).collect::<Vec<_>>(),
        sequence_of: &[0; 20],
        sequences: &[Sequence {
            pages,
            rope_length: 64,
        }],
        slots: &[SlotId::BASE; 20],
        wants: &[Want::Logits; 20],
    };
    exe.run(&step).expect("step").results
}

/// Keys and values in front of a sequence, and pages that are copied, are those of all heads.
#[test]
fn prefixes_and_copies_reach_all_heads() {
    let file = opened("models/llama-mha-f16");
    let (mut whole, mut cut) = whole_and_cut(&*file, KvFormat::F16, FLOATS, 4);
    let (tokens, lanes) = (20u32, 64usize);
    let noise = |seed: u32| -> Arc<[f32]> {
        let hash = |i: u32| (seed * 7919 + i).wrapping_mul(2_654_435_761) >> 8;
        let all = 0..tokens * lanes as u32;
        all.map(|i| hash(i) as f32 / (1 << 23) as f32 - 1.0)
            .collect()
    };
    let layer = |n: u32| PrefixLayer {
        keys: noise(2 * n),
        values: noise(2 * n + 1),
    };
    let prefix = KvPrefix {
        tokens,
        layers: (1..=2).map(layer).collect(),
    };
    let [want, have] = [&mut whole, &mut cut].map(|exe| {
        exe.write_prefix(&[7, 3], &prefix).expect("written");
        exe.copy_page(3, 12).expect("copied");
        exe.copy_page(7, 5).expect("copied");
        behind(exe, tokens, &[5, 12, 1])
    });
    assert!(have == want);
}
