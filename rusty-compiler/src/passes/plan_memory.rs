//! The memory planner: every intermediate gets a place in one arena by its live range, at the symbols' maxima.
//!
//! Values are placed largest first at the lowest offset that no value alive at the same time occupies (greedy
//! by size, arXiv 2001.03288). A kernel's outputs never share memory with its inputs: kernels may write some
//! rows while others still read. Results live to the end of the step.

use crate::plan::{Operand, Plan, PlanValueId, Sink};

/// Offsets are multiples of this: the strictest storage-binding alignment among targets.
const ALIGN: u64 = 256;

/// The kernels during which a value is alive, by their numbers; one past the last is the end of the step.
#[derive(Clone, Copy)]
struct Life {
    first: usize,
    last: usize,
}

impl Life {
    /// Whether both values are alive during some kernel.
    fn overlaps(self, other: Life) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Bytes of the arena that a value has while it is alive.
struct Place {
    start: u64,
    end: u64,
    life: Life,
}

/// Sets the offsets of all values that kernels use and the size of the arena.
pub(super) fn run(mut plan: Plan) -> Plan {
    let lives = lives(&plan);
    let mut order: Vec<PlanValueId> = (0..plan.values.len() as u32)
        .map(PlanValueId)
        .filter(|v| lives[v.index()].is_some())
        .collect();
    order.sort_by_key(|v| (std::cmp::Reverse(plan.bytes(*v)), *v));
    let mut placed: Vec<Place> = Vec::new();
    for value in order {
        let Some(life) = lives[value.index()] else {
            continue;
        };
        let bytes = plan.bytes(value).next_multiple_of(ALIGN);
        let mut busy: Vec<(u64, u64)> = placed
            .iter()
            .filter(|other| other.life.overlaps(life))
            .map(|other| (other.start, other.end))
            .collect();
        busy.sort_unstable();
        let mut offset = 0;
        for (start, end) in busy {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        placed.push(Place {
            start: offset,
            end: offset + bytes,
            life,
        });
        plan.values[value.index()].offset = offset;
    }
    plan.arena_bytes = placed.iter().map(|place| place.end).max().unwrap_or(0);
    plan
}

/// When each value is alive; `None`: fused away.
fn lives(plan: &Plan) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; plan.values.len()];
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
            let life = lives[value.index()].get_or_insert(Life {
                first: at,
                last: at,
            });
            life.last = at;
        }
    }
    for value in [plan.logits, plan.hidden, plan.argmax] {
        if let Some(life) = &mut lives[value.index()] {
            life.last = plan.kernels.len();
        }
    }
    lives
}
