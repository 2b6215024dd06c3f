//! A map that norms what a sublayer made and adds it to the residual becomes part of the contraction that reads the sum first, so that
//! decoding has no launch for it: each cube of a matrix-vector product norms the row for itself. Where rows are many, a launch of its own
//! makes the sum before. Worth it where launches cost time, a cube has planes and rows are [not long](LONGEST): on CPUs nothing changes.

use super::flow::Flow;
use super::rewrite::{compact_operands, is_output, last_word, moved, read_by_tails, without};
use crate::plan::{Anchor, Inst, Kernel, Operand, Plan, PlanValueId, Tail};
use rusty_backend::Target;

/// Longest row that each cube norms for itself, to save a launch: it is read twice more by each.
const LONGEST: u32 = 4096;

/// Folds such maps into the contractions behind them.
pub(super) fn run(mut plan: Plan, target: &Target) -> Plan {
    if target.is_cpu() || !target.plane_ops {
        return plan;
    }
    let flow = Flow::of(&plan);
    let mut folded = vec![false; plan.kernels.len()];
    for at in 0..plan.kernels.len() {
        if let Some(map) = map_of(&plan, &flow, at) {
            fold(&mut plan, map, at);
            folded[map] = true;
        }
    }
    without(plan, &folded)
}

/// The map that makes the input of the contraction at `at`, which is the first to read it.
fn map_of(plan: &Plan, flow: &Flow, at: usize) -> Option<usize> {
    let (k, input, value) = input(&plan.kernels[at])?;
    let map = flow.maker(value)?;
    let source = &plan.kernels[map];
    let [tail] = &source.tails[..] else {
        return None;
    };
    let reads = |kernel: &Kernel| kernel.operands.contains(&Operand::Value(value));
    let fits = k <= LONGEST
        && source.anchor == Anchor::Map
        && source.rows == plan.kernels[at].rows
        && tail.body.norms_once(k)
        && !plan.kernels[map + 1..at].iter().any(reads)
        && !read_by_tails(&plan.kernels[at], input)
        && !is_output(plan, value);
    fits.then_some(map)
}

/// Of a contraction whose input is an activation as it is or normed: its width, operand number and value.
fn input(kernel: &Kernel) -> Option<(u32, u16, PlanValueId)> {
    let Anchor::Contract { k, .. } = kernel.anchor else {
        return None;
    };
    let input = match kernel.prologue.insts[..] {
        [Inst::Load(input)] | [Inst::Load(input), Inst::RmsNorm { x: 0, .. }] => input,
        _ => return None,
    };
    match kernel.operands[input as usize] {
        Operand::Value(value) => Some((k, input, value)),
        _ => None,
    }
}

fn fold(plan: &mut Plan, map: usize, at: usize) {
    let (before, from) = plan.kernels.split_at_mut(at);
    let (source, kernel) = (&before[map], &mut from[0]);
    let tail = &source.tails[0];
    kernel.first.push(Tail {
        body: moved(&tail.body, &source.operands, &mut kernel.operands, 0),
        ..*tail
    });
    let own = last_word(&kernel.name);
    let layer = &kernel.name[..kernel.name.len() - own.len()];
    kernel.name = format!("{layer}{}>{own}", last_word(&source.name));
    compact_operands(kernel);
}
