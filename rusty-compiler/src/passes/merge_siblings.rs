//! Contractions that share their input become one kernel with several parts: the input row is made (normed,
//! quantized) once, and one launch covers Q, K and V, or gate and up. Weights in single precision stay apart where the others can go to
//! matrix units: a router is narrow, what it would hold back is not.

use super::rewrite::{last_word, moved};
use crate::plan::{Anchor, Inst, Kernel, Operand, Part, Plan};
use rusty_backend::Target;
use rusty_graph::Dim;
use rusty_loader::Format;
use std::collections::HashMap;

/// What siblings share.
#[derive(PartialEq, Eq, Hash)]
struct Input {
    operand: Operand,
    k: u32,
    rows: Dim,
    /// Weights in single precision, where those stay apart.
    single: bool,
}

/// Merges each contraction into the earliest one with the same input.
pub(super) fn run(mut plan: Plan, target: &Target) -> Plan {
    let matrix_units = !target.matrix_tiles.is_empty();
    let mut earliest: HashMap<Input, usize> = HashMap::new();
    for kernel in std::mem::take(&mut plan.kernels) {
        let at = plan.kernels.len();
        let input = input(&plan, &kernel, matrix_units);
        match input.map_or(at, |input| *earliest.entry(input).or_insert(at)) {
            first if first < at => absorb(&mut plan.kernels[first], kernel),
            _ => plan.kernels.push(kernel),
        }
    }
    plan
}

/// Right after lowering a contraction reads nothing but its input, so the later one may always move up.
fn input(plan: &Plan, kernel: &Kernel, matrix_units: bool) -> Option<Input> {
    let Anchor::Contract { k, parts } = &kernel.anchor else {
        return None;
    };
    let [operand] = kernel.operands[..] else {
        return None;
    };
    let single = |part: &Part| plan.weights[part.weight.index()].format == Format::F32;
    let plain = kernel.prologue.as_identity() == Some(Inst::Load(0));
    plain.then(|| Input {
        operand,
        k: *k,
        rows: kernel.rows,
        single: matrix_units && parts.first().is_some_and(single),
    })
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
