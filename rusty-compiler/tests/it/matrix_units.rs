//! Contractions on matrix units against tiles in single precision on the same GPU. Where the GPU's language has no such
//! instruction, its substitute multiplies the same fragments, so that tiles, fragments and tails are tested everywhere.

use crate::golden_paths::golden;
use crate::reference::{On, gpu};
use rusty_compiler::delta_table::PANEL;
use rusty_compiler::interleaving::Factor;
use rusty_compiler::{
    BindOptions, DeltaTable, Executable, KvFormat, RowResult, Sequence, SiteDelta, SlotData,
    SlotId, Step, Want, bind, compile,
};
use rusty_graph::{Graph, SiteId};
use rusty_loader::{Format, ModelFile};
use std::sync::Arc;

const OPTIONS: BindOptions = BindOptions {
    pages: 24,
    kv: KvFormat::F32,
    slots: 1,
};

fn noise(seed: u32, count: usize) -> impl Iterator<Item = f32> {
    let hash = move |i: u32| (seed * 7919 + i).wrapping_mul(2_654_435_761) >> 8;
    (0..count as u32).map(move |i| hash(i) as f32 / (1 << 23) as f32 - 1.0)
}

/// An adapter of rank 3 with factors on inputs and outputs.
fn adapter(graph: &Graph) -> SlotData {
    let deltas = graph.sites.iter().enumerate().map(|(id, site)| {
        let (k, n) = (site.k as usize, site.n as usize);
        let seed = id as u32;
        let table = |factor, rows: usize, columns: usize, seed: u32, spread: f32| {
            let values: Vec<f32> = noise(seed, rows * columns).map(|v| v * spread).collect();
            DeltaTable::encode(Format::F32, Some(factor), rows, columns, &values)
        };
        let gains = |seed, count| noise(seed, count).map(|v| 1.0 + 0.3 * v).collect();
        let delta = SiteDelta {
            rank: 3,
            a: table(Factor::A, 3, k, 3 * seed, 1.0 / (k as f32).sqrt()),
            b: table(
                Factor::B { rank: 3 },
                n.div_ceil(PANEL) * 3,
                PANEL,
                3 * seed + 1,
                0.1,
            ),
            scale: vec![1.0, 0.5, -1.0].into(),
            gain_in: Some(gains(3 * seed + 2, k)),
            gain_out: Some(gains(3 * seed + 3, n)),
            ..SiteDelta::default()
        };
        (SiteId(seed), delta)
    });
    SlotData {
        name: "test".into(),
        sites: deltas.collect(),
        ..SlotData::default()
    }
}

/// A model with the adapter, its contractions as `tiles` allow.
fn bound(file: &dyn ModelFile, tiles: Vec<(u32, u32, u32)>, variant: &str) -> Box<dyn Executable> {
    let On::Gpu(device) = gpu() else {
        panic!("no GPU")
    };
    let graph = rusty_graph::arch::build(file).expect("graph");
    let mut target = device.target().clone();
    target.matrix_tiles = tiles;
    let plan = compile(&graph, &target).expect("plan");
    let mut variants = plan.kernels.iter().flat_map(|k| &k.variants);
    assert!(variants.any(|v| v.name == variant), "no {variant}");
    let mut exe = bind(plan, file, &device, &OPTIONS).expect("bind");
    let adapter = Arc::new(adapter(&graph));
    exe.attach(SlotId(1), adapter).expect("attach");
    exe
}

/// Logits of a prompt in chunks, some rows with the adapter, some without.
fn logits(exe: &mut dyn Executable, chunk: usize) -> Vec<f32> {
    let pages: Vec<u32> = (0..24).collect();
    let ids: Vec<u32> = (0..75).map(|i| (i * 37 + 11) % 250).collect();
    let chunks = ids.chunks(chunk).enumerate();
    chunks
        .flat_map(|(at, tokens)| chunk_logits(exe, tokens, at * chunk, &pages))
        .collect()
}

fn chunk_logits(exe: &mut dyn Executable, tokens: &[u32], first: usize, pages: &[u32]) -> Vec<f32> {
    let count = tokens.len() as u32;
    let positions: Vec<u32> = (0..count).map(|i| first as u32 + i).collect();
    let step = Step {
        tokens,
        positions: &positions,
        sequence_of: &vec![0; tokens.len()],
        sequences: &[Sequence {
            pages,
            rope_length: 75,
        }],
        slots: &positions
            .iter()
            .map(|p| SlotId(p / 10 % 2))
            .collect::<Vec<_>>(),
        wants: &vec![Want::Logits; tokens.len()],
    };
    let results = exe.run(&step).expect("step").results;
    let logits = results.into_iter().flat_map(|(_, result)| match result {
        RowResult::Logits(logits) => logits,
        other => panic!("asked for logits, got {other:?}"),
    });
    logits.collect()
}

#[test]
fn matrix_units_agree_with_tiles() {
    for path in ["gguf/qwen3-float/BF16.gguf", "gguf/llama/mix-Q4_K_M.gguf"] {
        let file = rusty_loader::open(golden(path)).expect(path);
        let want = logits(&mut *bound(&*file, vec![], "gemm_tiled"), 62);
        let mut exe = bound(&*file, vec![(16, 8, 16)], "gemm_matrix_64");
        // Chunks of 20 rows take the smaller tile, of 62 the larger one, cut in the middle.
        for chunk in [20, 62] {
            let have = logits(&mut *exe, chunk);
            assert_eq!(have.len(), want.len());
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
                products.sum()
            };
            let apart = 1.0 - dot(&have, &want) / (dot(&have, &have) * dot(&want, &want)).sqrt();
            let squares = have
                .iter()
                .zip(&want)
                .map(|(a, b)| f64::from(a - b).powi(2));
            let rms = (squares.sum::<f64>() / have.len() as f64).sqrt();
            let said = format!("{path} by {chunk}: rms {rms}, 1 - cosine {apart}");
            println!("{said}");
            assert!(rms > 0.0, "{said}: not another kernel");
            assert!(rms < 0.05 && apart < 1e-4, "{said}");
        }
    }
}
