//! Kernels for GPUs without planes (sums in shared memory, rows of attention as tiles of one), and for those whose planes may be larger
//! than kernels count on, run by a GPU that has planes: what they give is what others give.

use crate::adapted_rows::{PAGES, attach, logits};
use crate::expected::Expected;
use crate::golden_paths::golden;
use crate::reference::{
    On, SELECTED, all_logits, assert_close, bound_with, distance, gpu_with_larger_planes,
    gpu_without_planes, instruction_sets, plain,
};
use rusty_compiler::{BindOptions, KvFormat};
use rusty_loader::ModelFile;

/// GPUs without planes, and with planes that may be larger than kernels count on.
fn lesser() -> Vec<On> {
    let larger = gpu_with_larger_planes(false);
    [gpu_without_planes()].into_iter().chain(larger).collect()
}

/// Logits of a prompt by tiles of many rows, by matrix-vector products of a few, or row by row, as `chunks` say, against the expected.
fn matches(file: &dyn ModelFile, chunks: &[usize], ids: &[u32], want: &[f32]) {
    let (name, pages) = (file.label(), (0..24).rev().collect::<Vec<u32>>());
    for on in lesser() {
        let mut exe = plain(file, &on);
        for chunk in chunks {
            let have = all_logits(&mut *exe, ids, *chunk, &pages);
            assert_close(&format!("{name} {on:?}, by {chunk}"), &have, want, 1e-3);
        }
    }
}

/// Tied heads and norms of heads, windows and softcaps, experts, latents.
#[test]
fn float_models_match_the_reference() {
    for (folder, chunks) in [
        ("models/qwen3-tied", &[SELECTED, 3, 1][..]),
        ("models/gemma2", &[SELECTED, 1]),
        ("models/mixtral", &[SELECTED, 1]),
        ("models/deepseek-v3", &[SELECTED, 3, 1]),
    ] {
        let file = rusty_loader::open(golden(folder)).expect(folder);
        let expected = Expected::read(folder);
        let ids = expected.ids("ids.2").expect("ids");
        let want = expected.floats("logits.2");
        matches(&*file, chunks, &ids, &want);
    }
}

/// Formats of all kinds of codes, scales and minima. Tiles of many rows exchange nothing in planes.
#[test]
fn block_formats_match_decoded_weights() {
    for (folder, stem, chunk) in [
        ("gguf/llama", "mix-Q4_K_M", 3),
        ("gguf/qwen3-zoo", "zoo", 1),
    ] {
        let file = rusty_loader::open(golden(&format!("{folder}/{stem}.gguf"))).expect(stem);
        let expected = Expected::read(folder);
        let ids = expected.ids("ids").expect("ids");
        let want = expected.floats(&format!("{stem}.logits_dequant"));
        matches(&*file, &[chunk], &ids, &want);
    }
}

/// Rows with an adapter beside rows without, against the CPU.
#[test]
fn adapters_do_the_same() {
    let folder = "models/qwen3-tied";
    let file = rusty_loader::open(golden(folder)).expect(folder);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let options = BindOptions {
        pages: PAGES,
        kv: KvFormat::F32,
        slots: 1,
    };
    let mut cpu = bound_with(&*file, &instruction_sets().remove(0), 2, options);
    let base = logits(&mut *cpu, 62, 1);
    attach(&mut *cpu, &graph, 1);
    let want = logits(&mut *cpu, 62, 1);
    let (change, _) = distance(&want, &base);
    assert!(change > 0.05, "adapters change logits by {change}");
    for on in lesser() {
        let mut exe = bound_with(&*file, &on, 1, options);
        attach(&mut *exe, &graph, 1);
        for rows in [62, 3, 1] {
            let have = logits(&mut *exe, rows, 1);
            assert_close(&format!("{on:?}, by {rows}"), &[have], &want, 1e-3);
        }
    }
}
