//! Maps over the same rows that do not wait for each other become one kernel with several tails: query norm
//! and rotation, key norm, rotation and page write, and value page write are one launch.

use super::flow::Flow;
use super::rewrite::{last_word, moved};
use crate::plan::{Anchor, Kernel, Plan};
use rusty_graph::Dim;
use std::collections::HashMap;

/// Merges each map into the earliest one at which its operands are ready.
pub(super) fn run(mut plan: Plan) -> Plan {
    let mut flow = Flow::of(&plan);
    // Numbers of the maps that stay, ascending, by their rows.
    let mut maps: HashMap<Dim, Vec<usize>> = HashMap::new();
    // Kernels come back one by one, so that those before a map are numbered as they stay.
    for kernel in std::mem::take(&mut plan.kernels) {
        let at = plan.kernels.len();
        if kernel.anchor == Anchor::Map {
            let maps = maps.entry(kernel.rows).or_default();
            if let Some(host) = earliest(maps, flow.ready(&kernel, &[])) {
                flow.place(&kernel, host);
                absorb(&mut plan.kernels[host], kernel);
                continue;
            }
            maps.push(at);
        }
        flow.place(&kernel, at);
        plan.kernels.push(kernel);
    }
    plan
}

/// The first of ascending numbers that is not before `ready`.
fn earliest(maps: &[usize], ready: Option<usize>) -> Option<usize> {
    let ready = ready?;
    maps.get(maps.partition_point(|at| *at < ready)).copied()
}

fn absorb(kernel: &mut Kernel, other: Kernel) {
    kernel.name = format!("{}+{}", kernel.name, last_word(&other.name));
    for mut tail in other.tails {
        tail.body = moved(&tail.body, &other.operands, &mut kernel.operands, 0);
        kernel.tails.push(tail);
    }
}
