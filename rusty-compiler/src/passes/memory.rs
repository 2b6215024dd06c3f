//! The memory planner: every intermediate gets a place in one arena by its live range, at the symbols' maxima.
//!
//! Values are placed largest first at the lowest offset that no value alive at the same time occupies (greedy
//! by size, arXiv 2001.03288). A kernel's outputs never share memory with its inputs: kernels may write some
//! rows while others still read. Results live to the end of the step.

use crate::plan::{Operand, Plan, PlanValueId, Sink};

/// Offsets are multiples of this: the strictest storage-binding alignment among targets.
const ALIGN: u64 = 256;

/// Sets the offsets of all values that kernels use and the size of the arena.
pub(super) fn run(mut plan: Plan) -> Plan {
    let ranges = live_ranges(&plan);
    let mut order: Vec<PlanValueId> = (0..plan.values.len() as u32)
        .map(PlanValueId)
        .filter(|v| ranges[v.index()].is_some())
        .collect();
    order.sort_by_key(|v| (std::cmp::Reverse(plan.bytes(*v)), *v));
    let mut placed: Vec<(u64, u64, (usize, usize))> = Vec::new();
    for value in order {
        let Some(range) = ranges[value.index()] else {
            continue;
        };
        let bytes = plan.bytes(value).next_multiple_of(ALIGN);
        let mut busy: Vec<(u64, u64)> = placed
            .iter()
            .filter(|(_, _, other)| other.0 <= range.1 && range.0 <= other.1)
            .map(|(start, end, _)| (*start, *end))
            .collect();
        busy.sort_unstable();
        let mut offset = 0;
        for (start, end) in busy {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        placed.push((offset, offset + bytes, range));
        plan.values[value.index()].offset = offset;
    }
    plan.arena_bytes = placed.iter().map(|(_, end, _)| *end).max().unwrap_or(0);
    plan
}

/// First and last kernel at which each value is alive; `None`: fused away.
fn live_ranges(plan: &Plan) -> Vec<Option<(usize, usize)>> {
    let mut ranges: Vec<Option<(usize, usize)>> = vec![None; plan.values.len()];
    for (at, kernel) in plan.kernels.iter().enumerate() {
        let stored = kernel
            .heads
            .iter()
            .chain(&kernel.tails)
            .filter_map(|t| match t.sink {
                Sink::Value(v) => Some(v),
                Sink::Key { .. } | Sink::Val { .. } => None,
            });
        let read = kernel.operands.iter().filter_map(|o| match o {
            Operand::Value(v) => Some(*v),
            _ => None,
        });
        for value in stored.chain(read).chain(kernel.scratch) {
            let range = ranges[value.index()].get_or_insert((at, at));
            range.1 = at;
        }
    }
    for value in [plan.logits, plan.hidden, plan.argmax] {
        if let Some(range) = &mut ranges[value.index()] {
            range.1 = plan.kernels.len();
        }
    }
    ranges
}
