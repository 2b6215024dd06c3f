//! Maps behind an anchor become part of its tail: `MatMul -> Add -> GELU` is one kernel because of what the
//! ops are.
//!
//! A map is absorbed by the kernel that makes a value it reads when nobody else reads that value, the widths
//! agree, and everything else it reads is ready by then. A map that reads several results of one kernel (gate
//! and up) is absorbed with all of them. Behind contractions, experts and attention only elementwise programs fit,
//! because a tile holds some lanes of a row; maps and row moves hold whole rows and take any program, but beside a softmax none
//! over groups of another size. Behind experts, and behind contractions on GPUs, writes of keys and values stay maps, which hold whole
//! heads: caches may be blocks of lanes.

use super::flow::Flow;
use super::rewrite::{compact_operands, inline, is_output, last_word, moved};
use crate::plan::{Anchor, Body, Kernel, Operand, Plan, PlanValueId, Sink, Tail};
use rusty_backend::Target;

/// Absorbs maps until none is left that fits.
pub(super) fn run(mut plan: Plan, target: &Target) -> Plan {
    let mut flow = Flow::of(&plan);
    // Kernels come back one by one, so that those before a map are numbered as they stay.
    for kernel in std::mem::take(&mut plan.kernels) {
        match host_of(&plan, &flow, &kernel, target) {
            Some((host, values)) => absorb(&mut plan, &mut flow, host, kernel, &values),
            None => {
                flow.place(&kernel, plan.kernels.len());
                plan.kernels.push(kernel);
            }
        }
    }
    plan
}

/// The kernel that can absorb a map, and the values that vanish.
fn host_of(
    plan: &Plan,
    flow: &Flow,
    map: &Kernel,
    target: &Target,
) -> Option<(usize, Vec<PlanValueId>)> {
    if map.anchor != Anchor::Map || map.tails.len() != 1 {
        return None;
    }
    let loads = map.operands.iter().filter_map(|o| match o {
        Operand::Value(v) => Some(*v),
        _ => None,
    });
    // The latest maker is the only one before which all the others can be ready.
    let host = loads.clone().filter_map(|v| flow.maker(v)).max()?;
    let values: Vec<_> = loads.filter(|v| flow.maker(*v) == Some(host)).collect();
    let to_pages = !matches!(map.tails[0].sink, Sink::Value(_));
    let whole = match plan.kernels[host].anchor {
        Anchor::Contract { .. } => target.is_cpu(),
        Anchor::Experts { .. } => false,
        _ => true,
    };
    if to_pages && !whole {
        return None;
    }
    let ready = flow.ready(map, &values).is_some_and(|at| at <= host);
    let unread = |v: &PlanValueId| flow.readers(*v) == 1 && !is_output(plan, *v);
    let all = ready && values.iter().all(unread) && fits(plan, host, map, &values);
    all.then_some((host, values))
}

/// Whether the program and its lanes can stand behind the host's.
fn fits(plan: &Plan, host: usize, map: &Kernel, values: &[PlanValueId]) -> bool {
    let kernel = &plan.kernels[host];
    let tail = &map.tails[0];
    let body_fits = match kernel.anchor {
        Anchor::Contract { .. } | Anchor::Experts { .. } | Anchor::Attention { .. } => {
            tail.body.is_elementwise()
        }
        Anchor::Map | Anchor::Gather { .. } | Anchor::SelectRows { .. } => true,
        Anchor::ArgMax { .. } | Anchor::Route { .. } => false,
    };
    let vanishes = |o: &Operand| matches!(o, Operand::Value(v) if values.contains(v));
    // What vanishes is there lane by lane only.
    let in_place = (map.operands.iter().enumerate())
        .all(|(i, o)| !vanishes(o) || !tail.body.moves_lanes_of(i as u16));
    let makes = |t: &&Tail| values.iter().any(|v| t.sink == Sink::Value(*v));
    let makers = kernel.tails.iter().filter(makes).map(|t| &t.body);
    let bodies: Vec<&Body> = makers.chain([&tail.body]).collect();
    body_fits
        && in_place
        && Body::groups_agree(&bodies)
        && kernel.rows == map.rows
        && values.iter().all(|v| plan.value(*v).width == tail.width)
}

fn absorb(plan: &mut Plan, flow: &mut Flow, host: usize, map: Kernel, values: &[PlanValueId]) {
    let kernel = &mut plan.kernels[host];
    flow.place(&map, host);
    flow.drop_reads(&map);
    flow.drop_reads(kernel);
    let vanishing = |sink: Sink| values.iter().copied().find(|v| sink == Sink::Value(*v));
    let mut inlined = Vec::new();
    let mut place = kernel.tails.len();
    let mut index = 0;
    kernel.tails.retain(|tail| {
        let gone = vanishing(tail.sink);
        if let Some(v) = gone {
            inlined.push((v, tail.body.clone()));
            place = place.min(index);
        }
        index += 1;
        gone.is_none()
    });
    let mut tail = map.tails.into_iter().next().expect("a map has a tail");
    tail.body = moved(&tail.body, &map.operands, &mut kernel.operands, 0);
    tail.body = inline(&tail.body, &kernel.operands, &inlined);
    kernel.tails.insert(place, tail);
    kernel.name = format!("{}>{}", kernel.name, last_word(&map.name));
    compact_operands(kernel);
    flow.add_reads(kernel);
}
