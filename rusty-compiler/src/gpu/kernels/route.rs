//! The choice of experts by router logits, see [`RouteSpec::choose`](rusty_graph::RouteSpec::choose).
//!
//! A unit has some of a row's experts, and finds the place of each by counting those that come before it: that takes as many steps as there
//! are experts, which all units take at once, and no exchange among them. Where a rank is not a number it is the lowest.

use super::env::{Buffers, bound, put};
use super::reduce::{Team, team_largest, team_sum};
use crate::plan::F32;
use cubecl::prelude::*;
use rusty_graph::{GroupScore, RouteGroups, RouteScore};

/// Units of a cube at most.
const UNITS: u32 = 128;

/// What a routing kernel is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteConfig {
    /// Header word of the row count.
    pub rows: usize,
    /// Experts to choose from.
    pub experts: u32,
    /// Experts that a row takes.
    pub used: u32,
    /// How logits become scores.
    pub score: RouteScore,
    /// Groups that are chosen first.
    pub groups: Option<RouteGroups>,
    /// Whether weights are divided by their sum.
    pub normalize: bool,
    /// Factor on the weights.
    pub scale: F32,
    /// First of two scalars: arena words of the logits and of the routes.
    pub arg: usize,
    /// Scalar: where the vectors hold a bias on scores.
    pub bias: Option<usize>,
}

impl RouteConfig {
    /// Units of a cube, one for each expert that a row takes at least.
    pub fn units(&self) -> u32 {
        let least = self.used.next_power_of_two();
        self.experts.next_power_of_two().min(UNITS).max(least)
    }

    /// They sum in shared memory, which needs nothing of the device.
    fn team(&self) -> Team {
        Team {
            units: self.units(),
            plane: 0,
        }
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        let words = 2 * self.experts + 2 * self.group_count() + self.used + 2 * self.units();
        words * 4
    }

    fn group_count(&self) -> u32 {
        self.groups.map_or(1, |g| g.count)
    }

    fn group_size(&self) -> u32 {
        self.experts / self.group_count()
    }
}

/// Below every rank.
const LOWEST: f32 = -1.0e30;

/// What the units of a cube know together.
#[derive(CubeType)]
struct Ballot {
    /// What experts are ordered by.
    ranks: Shared<[f32]>,
    /// Their scores.
    scores: Shared<[f32]>,
    /// What groups are ordered by.
    group_ranks: Shared<[f32]>,
    /// 1 for each group that is taken.
    open: Shared<[u32]>,
    /// The chosen, in order.
    chosen: Shared<[u32]>,
}

/// Cubes: `(rows)`.
#[cube(launch_unchecked)]
pub fn route(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: RouteConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let ballot = Ballot {
        ranks: Shared::<[f32]>::new_slice(comptime!(config.experts as usize)),
        scores: Shared::<[f32]>::new_slice(comptime!(config.experts as usize)),
        group_ranks: Shared::<[f32]>::new_slice(comptime!(config.group_count() as usize)),
        open: Shared::<[u32]>::new_slice(comptime!(config.group_count() as usize)),
        chosen: Shared::<[u32]>::new_slice(comptime!(config.used as usize)),
    };
    let row = CUBE_POS_X;
    if row < buffers.step[comptime!(config.rows)] {
        rank(&buffers, &ballot, row, config);
        if let Some(groups) = comptime!(config.groups) {
            choose_groups(&ballot, groups, config);
        }
        choose(&ballot, config);
        if UNIT_POS < comptime!(config.used) {
            let routes = buffers.args[comptime!(config.arg + 1)] + row * comptime!(2 * config.used);
            let mut by = comptime!(config.scale.get()).runtime();
            if comptime!(config.normalize) {
                let mut sum = 0.0f32;
                for j in 0..config.used {
                    sum += ballot.scores[ballot.chosen[j as usize] as usize];
                }
                by /= sum;
            }
            let expert = ballot.chosen[UNIT_POS as usize];
            put(buffers.arena, routes + UNIT_POS, f32::cast_from(expert));
            let place = routes + config.used + UNIT_POS;
            put(buffers.arena, place, ballot.scores[expert as usize] * by);
        }
    }
}

/// Scores and ranks of all experts; all groups are taken so far.
#[cube]
fn rank(buffers: &Buffers<'_>, ballot: &Ballot, row: u32, #[comptime] config: RouteConfig) {
    let logits = buffers.args[comptime!(config.arg)] + row * config.experts;
    let units = comptime!(config.units());
    let mut most = LOWEST.runtime();
    let mut total = 1.0f32;
    if comptime!(config.score == RouteScore::Softmax) {
        let mut e = UNIT_POS;
        while e < config.experts {
            most = max(most, buffers.arena[(logits + e) as usize]);
            e += units;
        }
        most = team_largest(most, comptime!(config.team()));
        let mut own = 0.0f32;
        let mut e = UNIT_POS;
        while e < config.experts {
            own += (buffers.arena[(logits + e) as usize] - most).exp();
            e += units;
        }
        total = team_sum(own, comptime!(config.team()));
    }
    let mut e = UNIT_POS;
    while e < config.experts {
        let logit = buffers.arena[(logits + e) as usize];
        let score = match comptime!(config.score) {
            RouteScore::Softmax => (logit - most).exp() / total,
            RouteScore::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
        };
        // Without a bias by the logits themselves, whose order is that of the scores and finer.
        let rank = match comptime!(config.bias) {
            Some(bias) => score + buffers.vectors[(buffers.args[bias] + e) as usize],
            None => logit,
        };
        put(&ballot.scores, e, score);
        // Not the larger of both, which some devices say is no number.
        put(
            &ballot.ranks,
            e,
            select(rank > LOWEST, rank, LOWEST.runtime()),
        );
        e += units;
    }
    if UNIT_POS < comptime!(config.used) {
        put(&ballot.chosen, UNIT_POS, UNIT_POS);
    }
    let mut g = UNIT_POS;
    while g < comptime!(config.group_count()) {
        put(&ballot.open, g, 1u32.runtime());
        g += units;
    }
    sync_cube();
}

/// Leaves the groups open that are taken.
#[cube]
fn choose_groups(
    ballot: &Ballot,
    #[comptime] groups: RouteGroups,
    #[comptime] config: RouteConfig,
) {
    let (count, size) = comptime!((config.group_count(), config.group_size()));
    let units = comptime!(config.units());
    let mut g = UNIT_POS;
    while g < count {
        let mut best = ballot.ranks[(g * size) as usize];
        // Groups of one expert have none.
        let mut second = LOWEST.runtime();
        for i in 1..size {
            let rank = ballot.ranks[(g * size + i) as usize];
            second = max(second, min(rank, best));
            best = max(best, rank);
        }
        let rank = match comptime!(groups.score) {
            GroupScore::BestTwo if comptime!(size > 1) => best + second,
            _ => best,
        };
        put(&ballot.group_ranks, g, rank);
        g += units;
    }
    sync_cube();
    let mut g = UNIT_POS;
    while g < count {
        let own = ballot.group_ranks[g as usize];
        let mut before = 0u32;
        for other in 0..count {
            before += comes_before(ballot.group_ranks[other as usize], other, own, g);
        }
        let taken = before < groups.used;
        put(
            &ballot.open,
            g,
            select(taken, 1u32.runtime(), 0u32.runtime()),
        );
        g += units;
    }
    sync_cube();
}

/// Finds the experts of open groups that come first.
#[cube]
fn choose(ballot: &Ballot, #[comptime] config: RouteConfig) {
    let (units, size) = comptime!((config.units(), config.group_size()));
    let mut e = UNIT_POS;
    while e < config.experts {
        let own = ballot.ranks[e as usize];
        let mut before = 0u32;
        for other in 0..config.experts {
            let earlier = comes_before(ballot.ranks[other as usize], other, own, e);
            before += earlier * ballot.open[(other / size) as usize];
        }
        if before < config.used && ballot.open[(e / size) as usize] == 1 {
            put(&ballot.chosen, before, e);
        }
        e += units;
    }
    sync_cube();
}

/// 1 where a rank at a place comes before another: the higher one, the first among equals.
#[cube]
fn comes_before(rank: f32, at: u32, other: f32, place: u32) -> u32 {
    let before = rank > other || (rank == other && at < place);
    select(before, 1u32.runtime(), 0u32.runtime())
}
