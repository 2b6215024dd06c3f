//! What adapters add to products, beside what the interpreter says that they add.

use super::graphs::Subject;
use super::running::{Rows, Running, token};
use crate::cosine;
use rusty_compiler::SlotData;
use rusty_graph::Interpreter;
use rusty_graph::interpret::SiteLora;
use std::sync::Arc;

/// Least cosine between what an adapter adds to a row and what it ought to add. Products of bytes round the row itself by about a
/// quarter of that, once with the adapter and once without.
const LEAST: f64 = 0.9;

/// Attaches adapters to all slots, by `attach`, and checks the first row alone, with the first of them, and the last of as many rows
/// as there are slots.
pub fn check_deltas(
    subject: &Subject,
    running: &mut Running,
    attach: impl FnOnce(&mut Running) -> Vec<Arc<SlotData>>,
) {
    let interpreter = Interpreter::new(&subject.graph, &subject.file).expect("interpreter");
    let bases = [1, SLOTS].map(|count| running.step(Rows::adapted(count, 0)));
    let adapters = attach(running);
    assert_eq!(adapters.len(), SLOTS);
    for (count, base) in [1, SLOTS].into_iter().zip(bases) {
        let row = count - 1;
        let hidden = |deltas: &[SiteLora]| {
            // Each row is a sequence of its own.
            let values = interpreter.run(&[token(row)], deltas).expect("values");
            values.hidden().row(0).to_vec()
        };
        let wanted = difference(&hidden(&low_ranks(subject, &adapters[row])), &hidden(&[]));
        let adapted = running.step(Rows::adapted(count, SLOTS as u32));
        let cosine = cosine(&difference(&adapted, &base), &wanted);
        assert!(
            cosine >= LEAST,
            "row {row}: what its adapter adds has cosine {cosine} to the interpreter's"
        );
    }
}

/// Slots, and rows that wear their adapters.
const SLOTS: usize = super::BATCH;

fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// The factors that an adapter's tables hold, for the interpreter.
fn low_ranks(subject: &Subject, adapter: &SlotData) -> Vec<SiteLora> {
    let factors = adapter.sites.iter().map(|(site, delta)| {
        let mut row = vec![0.0; delta.rank as usize];
        let mut b = vec![];
        for output in 0..subject.graph.site(*site).n as usize {
            delta.b_row(output, &mut row);
            b.extend(row.iter().zip(delta.scale.iter()).map(|(b, s)| b * s));
        }
        SiteLora {
            site: *site,
            a: delta.a.as_ref().expect("a factor").values(),
            b,
            scale: 1.0,
        }
    });
    factors.collect()
}
