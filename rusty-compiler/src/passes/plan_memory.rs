//! The memory planner: every intermediate gets a place in one arena by its live range, at the symbols' maxima.
//!
//! Values are placed largest first at the lowest offset that no value alive at the same time occupies (greedy
//! by size, arXiv 2001.03288). A kernel's outputs never share memory with its inputs: kernels may write some
//! rows while others still read. Results live to the end of the step.

use crate::plan::{Operand, Plan, PlanValueId, Sink};
use std::ops::RangeInclusive;

/// Offsets are multiples of this: the strictest storage-binding alignment among targets.
const ALIGN: u64 = 256;

/// The kernels during which a value is alive, by their numbers; one past the last is the end of the step.
type Life = RangeInclusive<usize>;

/// Sets the offsets of all values that kernels use and the size of the arena.
pub(super) fn run(mut plan: Plan) -> Plan {
    let lives = lives(&plan);
    let mut order: Vec<(PlanValueId, Life)> = (0..plan.values.len() as u32)
        .map(PlanValueId)
        .filter_map(|v| Some((v, lives[v.index()].clone()?)))
        .collect();
    order.sort_by_key(|(v, _)| (std::cmp::Reverse(plan.bytes(*v)), *v));
    // Bytes of the arena, from and to, that values have during each kernel and at the end.
    let mut taken: Vec<Vec<(u64, u64)>> = vec![vec![]; plan.kernels.len() + 1];
    plan.arena_bytes = 0;
    for (value, life) in order {
        let bytes = plan.bytes(value).next_multiple_of(ALIGN);
        let mut busy = taken[life.clone()].concat();
        busy.sort_unstable();
        let mut offset = 0;
        for (start, end) in busy {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        plan.values[value.index()].offset = offset;
        plan.arena_bytes = plan.arena_bytes.max(offset + bytes);
        for places in &mut taken[life] {
            places.push((offset, offset + bytes));
        }
    }
    plan
}

/// When each value is alive; `None`: fused away.
fn lives(plan: &Plan) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; plan.values.len()];
    for (at, kernel) in plan.kernels.iter().enumerate() {
        let stored = kernel
            .first
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
            let life = lives[value.index()].get_or_insert(at..=at);
            *life = *life.start()..=at;
        }
    }
    for value in [plan.logits, plan.hidden, plan.argmax] {
        if let Some(life) = &mut lives[value.index()] {
            *life = *life.start()..=plan.kernels.len();
        }
    }
    lives
}
