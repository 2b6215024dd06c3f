//! A map that only a contraction reads becomes its prologue, with at most one row reduction, at its end: of the norm
//! before a product the gain is applied where the product's input row is made, the row's factor wherever a kernel likes.

use super::rewrite::{
    compact_operands, inline, is_output, is_prologue, moved, plain_input, producer, read_by_tails,
    readers,
};
use crate::plan::{Anchor, Plan, PlanValueId, Sink};

/// Folds maps forward into contractions.
pub(super) fn run(mut plan: Plan) -> Plan {
    let mut at = 0;
    while at < plan.kernels.len() {
        match source(&plan, at) {
            Some((map, value)) => {
                fold(&mut plan, map, at, value);
                at = at.saturating_sub(1);
            }
            None => at += 1,
        }
    }
    plan
}

fn source(plan: &Plan, at: usize) -> Option<(usize, PlanValueId)> {
    let (k, input, value) = plain_input(plan, at)?;
    let map = producer(plan, value)?;
    let body = &plan.kernels[map]
        .tails
        .iter()
        .find(|t| t.sink == Sink::Value(value))?
        .body;
    let fits = plan.kernels[map].anchor == Anchor::Map
        && plan.kernels[map].tails.len() == 1
        && readers(plan, value) == 1
        && !read_by_tails(&plan.kernels[at], input)
        && !is_output(plan, value)
        && is_prologue(body, k);
    fits.then_some((map, value))
}

fn fold(plan: &mut Plan, map: usize, at: usize, value: PlanValueId) {
    let source = plan.kernels.remove(map);
    let kernel = &mut plan.kernels[at - 1];
    let body = moved(
        &source.tails[0].body,
        &source.operands,
        &mut kernel.operands,
        0,
    );
    kernel.prologue = inline(&kernel.prologue, &kernel.operands, &[(value, body)]);
    compact_operands(kernel);
}
