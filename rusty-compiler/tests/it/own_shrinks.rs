//! Matrix-vector products whose first cubes make adapters' first factor: what they give is what a launch of its own gives.

use crate::adapted_rows::{PAGES, adapter, logits};
use crate::golden_paths::golden;
use crate::reference::{
    On, assert_close, bound_with, distance, gpu, gpu_by_bytes, gpu_in_order, instruction_sets,
};
use rusty_compiler::{BindOptions, Executable, KvFormat, SlotId, compile};
use rusty_graph::Graph;
use rusty_loader::ModelFile;
use rusty_loader::quantize::{Target, quantize};
use std::sync::Arc;

const OPTIONS: BindOptions = BindOptions {
    pages: PAGES,
    kv: KvFormat::F32,
    slots: 1,
};

/// A model and its graph with room for an adapter.
fn adaptable(file: &dyn ModelFile, on: &On) -> (Box<dyn Executable>, Graph) {
    let graph = rusty_graph::arch::build(file).expect("graph");
    if let On::GpuAs(_, target) = on {
        let plan = compile(&graph, target).expect("plan");
        let more = plan.dispatches_with_adapters(1) - plan.dispatches(1);
        assert_eq!(more == 0, target.starts_in_order, "{more} launches more");
    }
    (bound_with(file, on, 2, OPTIONS), graph)
}

/// Logits of a prompt whose rows take turns with an adapter of a rank, in chunks of so many, for each number.
fn adapted(
    (exe, graph): &mut (Box<dyn Executable>, Graph),
    rank: usize,
    chunks: &[usize],
) -> Vec<Vec<f32>> {
    let adapter = Arc::new(adapter(graph, rank, 0));
    exe.attach(SlotId(1), adapter).expect("attach");
    let chunks = chunks.iter();
    chunks.map(|rows| logits(&mut **exe, *rows, 1)).collect()
}

/// Step after step: counters of one launch are ready for the next. Ranks that a cube makes at once, and more.
#[test]
fn cubes_that_wait_for_the_first_add_the_same() {
    let folder = "models/qwen3-tied";
    let file = rusty_loader::open(golden(folder)).expect(folder);
    let mut cpu = adaptable(&*file, &instruction_sets().remove(0));
    let mut gpu = adaptable(&*file, &gpu_in_order(false));
    for rank in [3, 21] {
        let want = adapted(&mut cpu, rank, &[62]).concat();
        let chunks = [1, 3, 4, 20];
        for (rows, have) in chunks.iter().zip(adapted(&mut gpu, rank, &chunks)) {
            assert_close(&format!("rank {rank}, by {rows}"), &[have], &want, 2e-3);
        }
    }
}

/// Inputs in bytes, those of rows whose adapter has factors on inputs in floats, though both share a cube: as near to products of
/// floats as rounding allows, whichever launch makes the first factor.
#[test]
fn adapters_change_products_of_bytes() {
    let folder = "models/qwen3-tied";
    let floats = rusty_loader::open(golden(folder)).expect(folder);
    let file = quantize(floats, Target::Int8, &|_, _| {}).expect("quantized");
    let exact = adapted(&mut adaptable(&*file, &gpu()), 3, &[1]).concat();
    for on in [gpu_by_bytes(true), gpu_in_order(true)] {
        let mut exe = adaptable(&*file, &on);
        let chunks = [1, 3, 4];
        for (rows, have) in chunks.iter().zip(adapted(&mut exe, 3, &chunks)) {
            let (_, away) = distance(&have, &exact);
            assert!(away > 0.0 && away < 1e-3, "{rows} rows: {away}");
        }
    }
}
