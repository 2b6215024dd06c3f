//! What reductions of bodies need to know of all lanes of a group, their *factors*: a norm has one, a softmax two.
//!
//! The team that owns a segment, a cube or a plane, makes the factors of groups that are the segment beforehand, those of an instruction behind those of
//! the ones before it. Norms over other groups are summed by each lane for itself.

use super::body::{Program, evaluate};
use super::env::Buffers;
use super::reduce::{Team, place_in, team_largest, team_sum};
use crate::plan::{F32, Inst};
use cubecl::prelude::*;

impl Program {
    /// Positions of instructions that reduce over the segment.
    pub fn reductions(&self) -> Vec<usize> {
        let over_segment = |at: &usize| self.insts[*at].reduced() == Some(self.segment);
        (0..self.insts.len()).filter(over_segment).collect()
    }

    /// Number of the first factor of instruction `at`; `None` where none is made beforehand.
    fn first_factor(&self, at: usize) -> Option<usize> {
        let reductions = self.reductions();
        let place = reductions.iter().position(|&i| i == at)?;
        let before = reductions[..place].iter();
        Some(before.map(|&i| factors_of(self.insts[i])).sum())
    }
}

/// How many factors a reduction has.
fn factors_of(inst: Inst) -> usize {
    match inst {
        Inst::Softmax { .. } => 2,
        _ => 1,
    }
}

/// The factors of all reductions over the segment that starts at lane `first`, in order. All units of the team must call it together.
#[cube]
pub fn segment_factors(
    buffers: &Buffers<'_>,
    base: u32,
    row: u32,
    first: u32,
    #[comptime] program: Program,
    #[comptime] team: Team,
) -> Sequence<f32> {
    let mut factors = Sequence::<f32>::new();
    #[unroll]
    for n in 0..comptime!(program.reductions().len()) {
        let at = comptime!(program.reductions()[n]);
        match comptime!(program.insts[at]) {
            Inst::RmsNorm { x, eps, .. } => {
                let factor = segment_norm(
                    buffers,
                    &factors,
                    base,
                    row,
                    first,
                    comptime!(program.clone()),
                    comptime!(x as usize),
                    eps,
                    team,
                );
                factors.push(factor);
            }
            Inst::Softmax { x, .. } => {
                let (most, by) = segment_softmax(
                    buffers,
                    &factors,
                    base,
                    row,
                    first,
                    comptime!(program.clone()),
                    comptime!(x as usize),
                    team,
                );
                factors.push(most);
                factors.push(by);
            }
            _ => {}
        }
    }
    factors
}

/// `1 / sqrt(mean(x^2) + eps)` of the segment.
#[cube]
fn segment_norm(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    base: u32,
    row: u32,
    first: u32,
    #[comptime] program: Program,
    #[comptime] x: usize,
    #[comptime] eps: F32,
    #[comptime] team: Team,
) -> f32 {
    let mut sum = 0.0f32;
    let mut lane = place_in(team);
    while lane < comptime!(program.segment) {
        let settings = comptime!(program.clone());
        let value = reduced(buffers, factors, base, row, first + lane, settings, x);
        sum += value * value;
        lane += comptime!(team.units);
    }
    let total = team_sum(sum, team);
    (total / comptime!(program.segment as f32) + comptime!(eps.get())).inverse_sqrt()
}

/// The segment's maximum, and one over the sum of its exponentials relative to that.
#[cube]
fn segment_softmax(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    base: u32,
    row: u32,
    first: u32,
    #[comptime] program: Program,
    #[comptime] x: usize,
    #[comptime] team: Team,
) -> (f32, f32) {
    // A unit that has no lane looks at the last one, which is no other maximum.
    let last = comptime!(program.segment - 1).runtime();
    let own = first + min(place_in(team), last);
    let settings = comptime!(program.clone());
    let mut largest = reduced(buffers, factors, base, row, own, settings, x);
    let mut next = place_in(team) + comptime!(team.units);
    while next < comptime!(program.segment) {
        let settings = comptime!(program.clone());
        let value = reduced(buffers, factors, base, row, first + next, settings, x);
        largest = max(largest, value);
        next += comptime!(team.units);
    }
    let most = team_largest(largest, team);
    let mut sum = 0.0f32;
    let mut lane = place_in(team);
    while lane < comptime!(program.segment) {
        let settings = comptime!(program.clone());
        let value = reduced(buffers, factors, base, row, first + lane, settings, x);
        sum += (value - most).exp();
        lane += comptime!(team.units);
    }
    let total = team_sum(sum, team);
    (most, 1.0 / total)
}

/// What is reduced at a lane: instruction `x`.
#[cube]
fn reduced(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    base: u32,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
    #[comptime] x: usize,
) -> f32 {
    let results = Sequence::<f32>::new();
    evaluate(buffers, &results, factors, base, row, lane, program, x)
}

/// `1 / sqrt(mean(x^2) + eps)` of the lane's group: made beforehand where the group is the segment, else
/// summed by each lane for itself.
#[cube]
pub(super) fn norm_factor(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    factors: &Sequence<f32>,
    base: u32,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
    #[comptime] at: usize,
    #[comptime] x: usize,
    #[comptime] eps: F32,
    #[comptime] group: u32,
) -> f32 {
    let made = comptime!(program.first_factor(at));
    match made {
        Some(index) => factors[index],
        None => {
            let first = lane - lane % group;
            let mut sum = 0.0f32;
            for i in 0..group {
                let value = evaluate(
                    buffers,
                    results,
                    factors,
                    base,
                    row,
                    first + i,
                    comptime!(program.clone()),
                    x,
                );
                sum += value * value;
            }
            (sum / comptime!(group as f32) + comptime!(eps.get())).inverse_sqrt()
        }
    }
}

/// The factors of a softmax. They are always made beforehand: beside a softmax a body has groups of one size only, which is the
/// segment's ([`Body::groups_agree`](crate::plan::Body::groups_agree)).
#[cube]
pub(super) fn softmax_factors(
    factors: &Sequence<f32>,
    #[comptime] program: Program,
    #[comptime] at: usize,
) -> (f32, f32) {
    let made = comptime!(program.first_factor(at));
    match made {
        Some(index) => (factors[index], factors[comptime!(index + 1)]),
        None => (0.0f32.runtime(), 0.0f32.runtime()),
    }
}
