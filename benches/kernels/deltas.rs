//! Products with adapters. What those add is checked beside what the interpreter says that they add.

use super::graphs::{self, Subject};
use super::running::{Rows, Running, token};
use super::{BATCH, Bench, CHECKED, Kind, Sizes, Work};
use crate::cosine;
use rusty_adapters::Precision;
use rusty_compiler::{SlotData, SlotId};
use rusty_graph::Interpreter;
use rusty_graph::interpret::SiteLora;
use rusty_loader::{Format, formats};
use std::sync::Arc;

const RANK: u32 = 16;

/// Least cosine between what an adapter adds to a row and what it ought to add. Products of bytes round the row itself by about a
/// quarter of that, once with the adapter and once without.
const LEAST: f64 = 0.9;

impl Bench<'_> {
    pub(super) fn adapters(&mut self) {
        let format = Format::Blocks(&formats::Q4_0);
        let few = Sizes {
            pairs: self.sizes.pairs.min(CHECKED),
            ..self.sizes
        };
        let checked = graphs::products(format, &few);
        let subject = graphs::products(format, &self.sizes);
        for (name, precision) in [("f16", Precision::F16), ("int8", Precision::Int8)] {
            check_deltas(
                &checked,
                &mut self.bound(&checked, BATCH as u32),
                |running| attach_all(&checked, running, precision),
            );
            let mut running = self.bound(&subject, BATCH as u32);
            let attached = attach_all(&subject, &mut running, precision);
            let bytes = attached[0].bytes() as u64;
            let weights = self.sizes.weights();
            for (rows, text) in [(1, "1 row"), (BATCH, "16 rows, 16 adapters")] {
                let work = Work {
                    bytes: self.stored(format, weights) + bytes * rows as u64,
                    operations: 2 * weights * rows as u64,
                    kind: Kind::Bytes,
                };
                self.time(&format!("LoRA rank 16 {name}/{text}"), work, || {
                    running.step(Rows::adapted(rows, BATCH as u32));
                });
            }
        }
    }
}

/// A different adapter in each slot.
fn attach_all(
    subject: &Subject,
    running: &mut Running,
    precision: Precision,
) -> Vec<Arc<SlotData>> {
    let sites = &subject.graph.sites;
    let attach = |slot: u32| {
        let adapter = rusty_adapters::random("random", sites, RANK, u64::from(slot), precision);
        let adapter = Arc::new(adapter);
        let attached = running.executable().attach(SlotId(slot), adapter.clone());
        attached.expect("attached");
        adapter
    };
    (1..=BATCH as u32).map(attach).collect()
}

/// Attaches adapters to all slots, by `attach`, and checks the first row alone, with the first of them, and the last of as many rows
/// as there are slots.
fn check_deltas(
    subject: &Subject,
    running: &mut Running,
    attach: impl FnOnce(&mut Running) -> Vec<Arc<SlotData>>,
) {
    let interpreter = Interpreter::new(&subject.graph, &subject.file).expect("interpreter");
    let bases = [1, BATCH].map(|count| running.step(Rows::adapted(count, 0)));
    let adapters = attach(running);
    assert_eq!(adapters.len(), BATCH);
    for (count, base) in [1, BATCH].into_iter().zip(bases) {
        let row = count - 1;
        let hidden = |deltas: &[SiteLora]| {
            // Each row is a sequence of its own.
            let values = interpreter.run(&[token(row)], deltas).expect("values");
            values.hidden().row(0).to_vec()
        };
        let wanted = difference(&hidden(&low_ranks(subject, &adapters[row])), &hidden(&[]));
        let adapted = running.step(Rows::adapted(count, BATCH as u32));
        let cosine = cosine(&difference(&adapted, &base), &wanted);
        assert!(
            cosine >= LEAST,
            "row {row}: what its adapter adds has cosine {cosine} to the interpreter's"
        );
    }
}

fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// The factors that an adapter's tables hold, for the interpreter.
fn low_ranks(subject: &Subject, adapter: &SlotData) -> Vec<SiteLora> {
    let factors = adapter.sites.iter().map(|(site, delta)| {
        let outputs = subject.graph.site(*site).n as usize;
        delta.low_rank(*site, outputs).expect("two factors")
    });
    factors.collect()
}
