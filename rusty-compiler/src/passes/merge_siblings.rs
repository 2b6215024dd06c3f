//! Contractions that share their input become one kernel with several parts: the input row is made (normed,
//! quantized) once, and one launch covers Q, K and V, or gate and up.

use super::rewrite::moved;
use crate::plan::{Anchor, Body, Inst, Kernel, Plan};

/// Merges each contraction into the earliest one with the same input.
pub(super) fn run(mut plan: Plan) -> Plan {
    let mut first = 0;
    while first < plan.kernels.len() {
        let mut other = first + 1;
        while other < plan.kernels.len() {
            if siblings(&plan.kernels[first], &plan.kernels[other]) {
                let merged = plan.kernels.remove(other);
                absorb(&mut plan.kernels[first], merged);
            } else {
                other += 1;
            }
        }
        first += 1;
    }
    plan
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
    kernel.name = format!(
        "{}+{}",
        kernel.name,
        other.name.rsplit('.').next().unwrap_or(&other.name)
    );
    for mut tail in other.tails {
        tail.body = moved(&tail.body, &other.operands, &mut kernel.operands, shift);
        kernel.tails.push(tail);
    }
}
