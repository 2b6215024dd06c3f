//! A map that only a contraction reads becomes its prologue, with at most one row reduction, at its end: of the norm
//! before a product the gain is applied where the product's input row is made, the row's factor wherever a kernel likes.

use super::flow::Flow;
use super::rewrite::{
    compact_operands, inline, is_output, is_prologue, moved, plain_input, read_by_tails, without,
};
use crate::plan::{Anchor, Plan, PlanValueId, Sink};

/// Folds maps forward into contractions.
pub(super) fn run(mut plan: Plan) -> Plan {
    let mut flow = Flow::of(&plan);
    let mut folded = vec![false; plan.kernels.len()];
    for at in 0..plan.kernels.len() {
        while let Some((map, value)) = source(&plan, &flow, at) {
            fold(&mut plan, &mut flow, map, at, value);
            folded[map] = true;
        }
    }
    without(plan, &folded)
}

fn source(plan: &Plan, flow: &Flow, at: usize) -> Option<(usize, PlanValueId)> {
    let (k, input, value) = plain_input(plan, at)?;
    let map = flow.maker(value)?;
    let body = &plan.kernels[map]
        .tails
        .iter()
        .find(|t| t.sink == Sink::Value(value))?
        .body;
    let fits = plan.kernels[map].anchor == Anchor::Map
        && plan.kernels[map].tails.len() == 1
        && flow.readers(value) == 1
        && !read_by_tails(&plan.kernels[at], input)
        && !is_output(plan, value)
        && is_prologue(body, k);
    fits.then_some((map, value))
}

fn fold(plan: &mut Plan, flow: &mut Flow, map: usize, at: usize, value: PlanValueId) {
    let (before, from) = plan.kernels.split_at_mut(at);
    let (source, kernel) = (&before[map], &mut from[0]);
    flow.drop_reads(source);
    flow.drop_reads(kernel);
    let body = moved(
        &source.tails[0].body,
        &source.operands,
        &mut kernel.operands,
        0,
    );
    kernel.prologue = inline(&kernel.prologue, &kernel.operands, &[(value, body)]);
    compact_operands(kernel);
    flow.add_reads(kernel);
}
