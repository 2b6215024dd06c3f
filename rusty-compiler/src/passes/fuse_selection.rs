//! A contraction over the rows that want an output reads them where they are, norm and all: selecting them first would be one
//! launch more. The selected rows are made only for callers who want them. On CPUs nothing changes.

use super::flow::Flow;
use super::rewrite::{compact_operands, intern, is_prologue, moved, plain_input, read_by_tails};
use crate::plan::{Anchor, Inst, Plan};
use rusty_backend::Target;

/// Folds the selection of rows into contractions.
pub(super) fn run(mut plan: Plan, target: &Target) -> Plan {
    if target.is_cpu() {
        return plan;
    }
    let mut flow = Flow::of(&plan);
    for at in 0..plan.kernels.len() {
        if let Some(select) = selection(&plan, &flow, at) {
            fold(&mut plan, &mut flow, select, at);
        }
    }
    plan
}

fn selection(plan: &Plan, flow: &Flow, at: usize) -> Option<usize> {
    let (k, input, value) = plain_input(plan, at)?;
    let select = flow.maker(value)?;
    let source = &plan.kernels[select];
    let body = &source.tails[0].body;
    let fits = matches!(source.anchor, Anchor::SelectRows { .. })
        && source.tails.len() == 1
        && is_prologue(body, k)
        && !body.insts.iter().any(|i| matches!(i, Inst::Load(_)))
        && flow.readers(value) == 1
        && value == plan.hidden
        && !read_by_tails(&plan.kernels[at], input);
    fits.then_some(select)
}

fn fold(plan: &mut Plan, flow: &mut Flow, select: usize, at: usize) {
    let source = &plan.kernels[select];
    let Anchor::SelectRows { x } = source.anchor else {
        return;
    };
    let (body, operands) = (source.tails[0].body.clone(), source.operands.clone());
    let kernel = &mut plan.kernels[at];
    flow.drop_reads(kernel);
    let chosen = intern(&mut kernel.operands, operands[x as usize]);
    let mut body = moved(&body, &operands, &mut kernel.operands, 0);
    for inst in &mut body.insts {
        if matches!(inst, Inst::Result(_)) {
            *inst = Inst::Chosen(chosen);
        }
    }
    kernel.prologue = body;
    compact_operands(kernel);
    flow.add_reads(kernel);
}
