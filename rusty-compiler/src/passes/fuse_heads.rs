//! A map that makes the heads of attention (norms, rotations, the write of keys) becomes part of it, so that decoding has
//! no launch for it. Worth it where launches cost time and planes have room for heads: on CPUs nothing changes.

use super::flow::Flow;
use super::rewrite::{compact_operands, is_output, last_word, moved, without};
use crate::plan::{Anchor, Kernel, Operand, Plan, Sink, Tail};
use rusty_backend::Target;

/// Folds such maps into the attention behind them.
pub(super) fn run(mut plan: Plan, target: &Target) -> Plan {
    if target.is_cpu() || !plan.planes_hold_heads(target) {
        return plan;
    }
    let mut flow = Flow::of(&plan);
    let mut folded = vec![false; plan.kernels.len()];
    for at in 0..plan.kernels.len() {
        if let Some(map) = map_of(&plan, &flow, at) {
            fold(&mut plan, &mut flow, map, at);
            folded[map] = true;
        }
    }
    without(plan, &folded)
}

/// The map that makes what the attention at `at` waits for, and nothing else.
fn map_of(plan: &Plan, flow: &Flow, at: usize) -> Option<usize> {
    let Anchor::Attention { q, spec } = plan.kernels[at].anchor else {
        return None;
    };
    let Operand::Value(queries) = plan.kernels[at].operands[q as usize] else {
        return None;
    };
    let map = flow.maker(queries)?;
    let kernel = &plan.kernels[map];
    let of_heads = kernel.tails.iter().all(|t| {
        let (fits, lanes) = match t.sink {
            Sink::Value(v) => (v == queries, spec.head_dim),
            Sink::Key { layer } => (layer == spec.layer, spec.head_dim),
            Sink::Val { layer } => (layer == spec.layer, spec.value_dim()),
        };
        fits && t.body.stays_in_groups(lanes)
    });
    let reads_pages = |k: &Kernel| matches!(&k.anchor, Anchor::Attention { spec: other, .. } if other.layer == spec.layer);
    let fits = kernel.anchor == Anchor::Map
        && of_heads
        && flow.readers(queries) == 1
        && !is_output(plan, queries)
        && !plan.kernels[map..at].iter().any(reads_pages);
    fits.then_some(map)
}

fn fold(plan: &mut Plan, flow: &mut Flow, map: usize, at: usize) {
    let (before, from) = plan.kernels.split_at_mut(at);
    let (source, kernel) = (&before[map], &mut from[0]);
    flow.drop_reads(source);
    flow.drop_reads(kernel);
    for tail in &source.tails {
        kernel.first.push(Tail {
            body: moved(&tail.body, &source.operands, &mut kernel.operands, 0),
            ..*tail
        });
    }
    kernel.name = format!("{}>{}", source.name, last_word(&kernel.name));
    compact_operands(kernel);
    flow.add_reads(kernel);
}
