//! Adapters of routed experts and of the matrices of latent attention's heads, on every device.

use crate::adapted_rows::{PAGES, adapter, ids, logits, low_ranks, oracle, stored};
use crate::golden_paths::golden;
use crate::reference::{
    On, adapted_logits, assert_close, bound_with, distance, everywhere, gpu_by_bytes,
    gpu_without_planes, instruction_sets,
};
use rusty_backend::Isa;
use rusty_compiler::{BindOptions, DeltaTable, KvFormat, SlotData, SlotId};
use rusty_graph::Graph;
use rusty_loader::quantize::{Target, quantize};
use rusty_loader::{Format, ModelFile};
use std::sync::Arc;

/// Experts that are routed in groups, beside shared ones, behind latent attention; and routed ones alone.
const MODELS: [&str; 2] = ["deepseek-v2", "qwen3-moe"];
/// Ranks that fill no block that kernels take at once.
const RANK: usize = 21;
/// Rows of a step: more than an expert's tile has, and one.
const CHUNKS: [usize; 2] = [62, 1];
const OPTIONS: BindOptions = BindOptions {
    pages: PAGES,
    kv: KvFormat::F32,
    slots: 2,
};

fn open(model: &str) -> Box<dyn ModelFile> {
    rusty_loader::open(golden(&format!("models/{model}"))).expect(model)
}

fn grouped(graph: &Graph) -> usize {
    graph.sites.iter().filter(|site| site.grouped).count()
}

/// Tables in every format, on every instruction set and the GPU; of the model without latents in one of floats and one of codes.
#[test]
fn adapters_of_experts_match_the_oracle() {
    for model in MODELS {
        let mut devices = everywhere();
        // The model with experts of both kinds is enough to tell whether planes matter.
        if model == MODELS[0] {
            devices.push(gpu_without_planes());
        }
        let file = open(model);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        assert!(grouped(&graph) > 20, "{model}");
        let base = oracle(&graph, &*file, &SlotData::default());
        let few = [Format::F16, Format::by_name("q8_0").expect("a format")];
        let formats = DeltaTable::FORMATS.into_iter();
        for format in formats.filter(|f| model == MODELS[0] || few.contains(f)) {
            let adapter = stored(low_ranks(&graph, RANK), format);
            let want = oracle(&graph, &*file, &adapter);
            let (change, _) = distance(&want, &base);
            assert!(change > 0.05, "adapters change logits by {change}");
            // One format is enough to tell whether a GPU's kernels differ from each other.
            let all = format == Format::F16;
            for on in devices
                .iter()
                .filter(|on| all || !matches!(on, On::GpuAs(..)))
            {
                let mut exe = bound_with(&*file, on, 2, OPTIONS);
                exe.attach(SlotId(1), adapter.clone()).expect("attached");
                let pages: Vec<u32> = (0..PAGES).collect();
                for chunk in CHUNKS {
                    let have = adapted_logits(&mut *exe, SlotId(1), &ids(), chunk, &pages);
                    let name = format!("{model}, {} on {on:?}, by {chunk}", format.name());
                    assert_close(&name, &[have.concat()], &want, 2e-3);
                }
            }
        }
    }
}

/// Rows that take turns with two adapters, which scale outputs and add to them, and with none: the same on every device, and on a
/// CPU bit for bit whatever rows are beside.
#[test]
fn rows_of_different_adapters_share_experts() {
    for model in MODELS {
        let file = open(model);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let run = |on: &On, chunk| {
            let mut exe = bound_with(&*file, on, 2, OPTIONS);
            for (slot, rank) in [(1, RANK), (2, 3)] {
                let adapter = with_biases(adapter(&graph, rank, 40 * slot), &graph);
                exe.attach(SlotId(slot), Arc::new(adapter)).expect("attach");
            }
            logits(&mut *exe, chunk, 2)
        };
        let want = run(&On::Cpu(Isa::Scalar), CHUNKS[0]);
        for on in everywhere() {
            let together = run(&on, CHUNKS[0]);
            let name = format!("{model} on {on:?}");
            assert_close(&name, std::slice::from_ref(&together), &want, 2e-3);
            let alone = run(&on, 1);
            assert!(alone == together || matches!(on, On::Gpu(_)), "{name}");
            assert_close(&name, &[alone], &want, 2e-3);
        }
    }
}

fn with_biases(mut adapter: SlotData, graph: &Graph) -> SlotData {
    for (id, delta) in &mut adapter.sites {
        let n = graph.site(*id).n;
        let bias = (0..n).map(|i| ((i * 7 + id.0) % 13) as f32 * 0.01 - 0.06);
        delta.bias = Some(bias.collect());
    }
    adapter
}

/// Weights and tables of bytes, whose inputs are rounded; experts alone are changed.
#[test]
fn adapters_of_experts_in_bytes_are_near_the_oracle() {
    let int8 = Format::by_name("q8_0").expect("a format");
    for model in MODELS {
        let file = quantize(open(model), Target::Int8, &|_, _| {}).expect(model);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let mut adapter = low_ranks(&graph, RANK);
        adapter.sites.retain(|(id, _)| graph.site(*id).grouped);
        assert_eq!(adapter.sites.len(), grouped(&graph));
        let adapter = stored(adapter, int8);
        let want = oracle(&graph, &*file, &adapter);
        for on in [instruction_sets(), vec![gpu_by_bytes(true)]].concat() {
            let mut exe = bound_with(&*file, &on, 2, OPTIONS);
            exe.attach(SlotId(1), adapter.clone()).expect("attached");
            let pages: Vec<u32> = (0..PAGES).collect();
            for chunk in CHUNKS {
                let have = adapted_logits(&mut *exe, SlotId(1), &ids(), chunk, &pages).concat();
                let (rms, apart) = distance(&have, &want);
                let said = format!("{model} on {on:?}, by {chunk}: rms {rms}, {apart}");
                assert!(apart < 5e-3, "{said}");
            }
        }
    }
}

/// What no kernel does is refused with the site's name, and leaves the slot empty.
#[test]
fn scaled_inputs_of_experts_are_refused() {
    let file = open("qwen3-moe");
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let mut adapter = low_ranks(&graph, RANK);
    adapter.sites.retain(|(id, _)| graph.site(*id).grouped);
    let (id, delta) = adapter.sites.last_mut().expect("an expert");
    let site = graph.site(*id);
    delta.gain_in = Some(vec![1.0; site.k as usize].into());
    for on in everywhere() {
        let mut exe = bound_with(&*file, &on, 1, OPTIONS);
        let refused = exe.attach(SlotId(1), Arc::new(adapter.clone()));
        let said = refused.expect_err("scales inputs").to_string();
        assert!(said.contains(&site.name), "{said}");
        assert_eq!(
            exe.memory().adapters,
            bound_with(&*file, &on, 1, OPTIONS).memory().adapters
        );
    }
}
