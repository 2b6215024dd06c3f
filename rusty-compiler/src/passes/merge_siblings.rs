//! Contractions that share their input become one kernel with several parts: the input row is made (normed,
//! quantized) once, and one launch covers Q, K and V, or gate and up. Weights in single precision stay apart where the others can go to
//! matrix units: a router is narrow, what it would hold back is not.

use super::rewrite::{last_word, merge, moved};
use crate::plan::{Anchor, Body, Inst, Kernel, Part, Plan};
use rusty_backend::Target;
use rusty_loader::Format;

/// Merges each contraction into the earliest one with the same input.
pub(super) fn run(plan: Plan, target: &Target) -> Plan {
    let matrix_units = !target.matrix_tiles.is_empty();
    let may = |plan: &Plan, first: usize, other: usize| {
        let (a, b) = (&plan.kernels[first], &plan.kernels[other]);
        let apart = matrix_units && single(plan, a) != single(plan, b);
        !apart && siblings(a, b)
    };
    merge(plan, may, absorb)
}

/// Whether weights are in single precision.
fn single(plan: &Plan, kernel: &Kernel) -> bool {
    let format = |part: &Part| plan.weights[part.weight.index()].format;
    matches!(&kernel.anchor, Anchor::Contract { parts, .. } if format(&parts[0]) == Format::F32)
}

/// Right after lowering a contraction reads nothing but its input, so the later one may always move up.
fn siblings(a: &Kernel, b: &Kernel) -> bool {
    let (Anchor::Contract { k, .. }, Anchor::Contract { k: k2, .. }) = (&a.anchor, &b.anchor)
    else {
        return false;
    };
    let plain = Body::identity(Inst::Load(0));
    k == k2
        && a.rows == b.rows
        && a.prologue == plain
        && b.prologue == plain
        && a.operands.first() == b.operands.first()
        && b.operands.len() == 1
}

fn absorb(kernel: &mut Kernel, other: Kernel) {
    let (Anchor::Contract { parts, .. }, Anchor::Contract { parts: more, .. }) =
        (&mut kernel.anchor, other.anchor)
    else {
        return;
    };
    let shift = parts.len() as u16;
    parts.extend(more);
    kernel.name = format!("{}+{}", kernel.name, last_word(&other.name));
    for mut tail in other.tails {
        tail.body = moved(&tail.body, &other.operands, &mut kernel.operands, shift);
        kernel.tails.push(tail);
    }
}
