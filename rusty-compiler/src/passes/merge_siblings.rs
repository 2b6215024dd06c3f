//! Contractions that share their input become one kernel with several parts: the input row is made (normed,
//! quantized) once, and one launch covers Q, K and V, or gate and up; so do products with the same experts. Weights in single precision stay apart where the others can go to
//! matrix units: a router is narrow, what it would hold back is not.

use super::rewrite::{last_word, moved};
use crate::plan::{Anchor, ExpertPart, Inst, Kernel, Operand, Part, Plan};
use rusty_backend::Target;
use rusty_graph::Dim;
use rusty_loader::Format;
use std::collections::HashMap;

/// What siblings share.
#[derive(PartialEq, Eq, Hash)]
struct Input {
    /// The activation, and the routes to experts.
    operands: Vec<Operand>,
    k: u32,
    rows: Dim,
    kind: Kind,
}

#[derive(PartialEq, Eq, Hash)]
enum Kind {
    Contraction {
        /// Weights in single precision, where those stay apart.
        single: bool,
    },
    /// Experts' outputs and how many experts there are.
    Experts { n: u32, count: usize },
}

/// Merges each product into the earliest one with the same input.
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

/// Right after lowering a product reads nothing but its input and its routes, so the later one may always move up.
fn input(plan: &Plan, kernel: &Kernel, matrix_units: bool) -> Option<Input> {
    let single = |part: &Part| plan.weights[part.weight.index()].format == Format::F32;
    let (k, kind) = match &kernel.anchor {
        Anchor::Contract { k, parts } => {
            let plain = kernel.prologue.as_identity() == Some(Inst::Load(0));
            let single = matrix_units && parts.first().is_some_and(single);
            plain.then_some((*k, Kind::Contraction { single }))?
        }
        // Heads have inputs of their own each, as products that are summed.
        Anchor::Experts {
            routes: Some(_),
            combine: false,
            k,
            n,
            parts,
            ..
        } => {
            let count = ExpertPart::experts(parts);
            (*k, Kind::Experts { n: *n, count })
        }
        _ => return None,
    };
    Some(Input {
        operands: kernel.operands.clone(),
        k,
        rows: kernel.rows,
        kind,
    })
}

fn absorb(kernel: &mut Kernel, other: Kernel) {
    let shift = match (&mut kernel.anchor, other.anchor) {
        (Anchor::Contract { parts, .. }, Anchor::Contract { parts: more, .. }) => {
            append(parts, more)
        }
        (Anchor::Experts { parts, .. }, Anchor::Experts { parts: more, .. }) => append(parts, more),
        _ => return,
    };
    kernel.name = format!("{}+{}", kernel.name, last_word(&other.name));
    for mut tail in other.tails {
        let operands = &mut kernel.operands;
        tail.body = moved(&tail.body, &other.operands, operands, shift as u16);
        kernel.tails.push(tail);
    }
}

/// Appends parts, and returns the number of the first of them.
fn append<T>(parts: &mut Vec<T>, more: Vec<T>) -> usize {
    let first = parts.len();
    parts.extend(more);
    first
}
