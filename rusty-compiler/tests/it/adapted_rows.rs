//! Rows of a prompt that take turns with adapters: what kernels that do the same in different ways are compared by.

use rusty_compiler::delta_table::PANEL;
use rusty_compiler::interleaving::Factor;
use rusty_compiler::{
    DeltaTable, Executable, PAGE_TOKENS, RowResult, Sequence, SiteDelta, SlotData, SlotId, Step,
    Want,
};
use rusty_graph::interpret::SiteLora;
use rusty_graph::{Graph, Interpreter, SiteId};
use rusty_loader::{Format, ModelFile};
use std::sync::Arc;

/// Tokens of the prompt.
pub(crate) const TOKENS: u32 = 75;
/// Pages that it takes.
pub(crate) const PAGES: u32 = TOKENS.div_ceil(PAGE_TOKENS as u32);

fn noise(seed: u32, count: usize) -> impl Iterator<Item = f32> {
    let hash = move |i: u32| (seed * 7919 + i).wrapping_mul(2_654_435_761) >> 8;
    (0..count as u32).map(move |i| hash(i) as f32 / (1 << 23) as f32 - 1.0)
}

/// An adapter of a rank with factors on inputs and outputs; another `first` gives other values.
pub(crate) fn adapter(graph: &Graph, rank: usize, first: u32) -> SlotData {
    let scales = [1.0, 0.5, -1.0];
    let deltas = graph.sites.iter().zip(0..).map(|(site, id)| {
        let (k, n) = (site.k as usize, site.n as usize);
        let seed = first + id;
        let table = |factor, rows: usize, columns: usize, seed: u32, spread: f32| {
            let values: Vec<f32> = noise(seed, rows * columns).map(|v| v * spread).collect();
            DeltaTable::encode(Format::F32, Some(factor), rows, columns, &values)
        };
        let gains = |seed, count| noise(seed, count).map(|v| 1.0 + 0.3 * v).collect();
        let delta = SiteDelta {
            rank: rank as u32,
            a: table(Factor::A, rank, k, 3 * seed, 1.0 / (k as f32).sqrt()),
            b: table(
                Factor::B { rank },
                n.div_ceil(PANEL) * rank,
                PANEL,
                3 * seed + 1,
                0.1,
            ),
            scale: scales.into_iter().cycle().take(rank).collect(),
            gain_in: (!site.grouped).then(|| gains(3 * seed + 2, k)),
            gain_out: Some(gains(3 * seed + 3, n)),
            ..SiteDelta::default()
        };
        (SiteId(id), delta)
    });
    SlotData {
        name: "test".into(),
        sites: deltas.collect(),
        ..SlotData::default()
    }
}

/// An adapter with its tables in a format, where their rows are whole blocks of it.
pub(crate) fn stored(mut adapter: SlotData, format: Format) -> Arc<SlotData> {
    for (_, delta) in &mut adapter.sites {
        for table in [&mut delta.a, &mut delta.b].into_iter().flatten() {
            *table = table.converted(format);
            let whole = table.columns().is_multiple_of(PANEL);
            assert!(table.format() == format || !whole, "{}", table.columns());
        }
    }
    Arc::new(adapter)
}

/// One without factors on inputs and outputs, which the oracle does not know.
pub(crate) fn low_ranks(graph: &Graph, rank: usize) -> SlotData {
    let mut adapter = adapter(graph, rank, 0);
    for (_, delta) in &mut adapter.sites {
        (delta.gain_in, delta.gain_out) = (None, None);
    }
    adapter
}

/// The oracle's logits of the prompt with what the tables of an adapter hold.
pub(crate) fn oracle(graph: &Graph, file: &dyn ModelFile, adapter: &SlotData) -> Vec<f32> {
    let loras = adapter.sites.iter().map(|(site, delta)| {
        let outputs = graph.site(*site).n as usize;
        delta.low_rank(*site, outputs).expect("two factors")
    });
    let loras: Vec<SiteLora> = loras.collect();
    let oracle = Interpreter::new(graph, file).expect("oracle");
    let values = oracle.run(&ids(), &loras).expect("values");
    values.logits().data.clone()
}

/// Puts that adapter into each of so many slots.
pub(crate) fn attach(exe: &mut dyn Executable, graph: &Graph, slots: u32) {
    let adapter = Arc::new(adapter(graph, 3, 0));
    for slot in 1..=slots {
        exe.attach(SlotId(slot), adapter.clone()).expect("attach");
    }
}

/// The prompt.
pub(crate) fn ids() -> Vec<u32> {
    (0..TOKENS).map(|i| (i * 37 + 11) % 250).collect()
}

/// Logits of the prompt in chunks, some rows with an adapter of so many slots, some without.
pub(crate) fn logits(exe: &mut dyn Executable, chunk: usize, slots: u32) -> Vec<f32> {
    logits_of(exe, TOKENS as usize, chunk, slots)
}

/// The same of its first `rows` tokens.
pub(crate) fn logits_of(
    exe: &mut dyn Executable,
    rows: usize,
    chunk: usize,
    slots: u32,
) -> Vec<f32> {
    let (ids, pages) = (ids(), (0..PAGES).collect::<Vec<u32>>());
    let chunks = ids[..rows].chunks(chunk).enumerate();
    chunks
        .flat_map(|(at, tokens)| chunk_logits(exe, tokens, (at * chunk, slots), &pages))
        .collect()
}

fn chunk_logits(
    exe: &mut dyn Executable,
    tokens: &[u32],
    (first, slots): (usize, u32),
    pages: &[u32],
) -> Vec<f32> {
    let count = tokens.len() as u32;
    let positions: Vec<u32> = (0..count).map(|i| first as u32 + i).collect();
    let step = Step {
        tokens,
        positions: &positions,
        sequence_of: &vec![0; tokens.len()],
        sequences: &[Sequence {
            pages,
            rope_length: TOKENS,
        }],
        slots: &positions
            .iter()
            .map(|p| SlotId(p / 10 % (slots + 1)))
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
