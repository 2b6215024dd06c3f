//! Maps over the same rows that do not wait for each other become one kernel with several tails: query norm
//! and rotation, key norm, rotation and page write, and value page write are one launch.

use super::rewrite::{last_word, merge, moved, ready_before};
use crate::plan::{Anchor, Kernel, Plan};

/// Merges each map into the earliest one at which its operands are ready.
pub(super) fn run(plan: Plan) -> Plan {
    merge(plan, mergeable, absorb)
}

fn mergeable(plan: &Plan, first: usize, other: usize) -> bool {
    let (a, b) = (&plan.kernels[first], &plan.kernels[other]);
    a.anchor == Anchor::Map
        && b.anchor == Anchor::Map
        && a.rows == b.rows
        && ready_before(plan, b, first, &[])
}

fn absorb(kernel: &mut Kernel, other: Kernel) {
    kernel.name = format!("{}+{}", kernel.name, last_word(&other.name));
    for mut tail in other.tails {
        tail.body = moved(&tail.body, &other.operands, &mut kernel.operands, 0);
        kernel.tails.push(tail);
    }
}
