//! The choice of experts by router logits, see [`RouteSpec::choose`](rusty_graph::RouteSpec::choose).

use super::env::{Buffers, bound, put};
use crate::plan::F32;
use cubecl::prelude::*;
use rusty_graph::{GroupScore, RouteGroups, RouteScore};

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

/// Below every rank.
const LOWEST: f32 = -1.0e30;

/// A row's logits, and what scores need to know of all of them.
#[derive(CubeType)]
struct Logits {
    /// Arena word of the first.
    at: u32,
    /// The largest.
    most: f32,
    /// Sum of all exponentials, relative to the largest.
    total: f32,
}

/// Cubes: `(rows)`; one unit does the work, which is small.
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
    let row = CUBE_POS_X;
    if row < buffers.step[comptime!(config.rows)] && UNIT_POS == 0 {
        let logits = survey(&buffers, row, config);
        let routes = buffers.args[comptime!(config.arg + 1)] + row * comptime!(2 * config.used);
        let closed = closed_groups(&buffers, &logits, config);
        let mut chosen = Array::<u32>::new(comptime!(config.used as usize));
        let mut scores = Array::<f32>::new(comptime!(config.used as usize));
        let mut sum = 0.0f32;
        #[unroll]
        for j in 0..comptime!(config.used as usize) {
            let mut best = comptime!(config.experts).runtime();
            let mut highest = 0.0f32;
            for e in 0..config.experts {
                let rank = rank_of(&buffers, &logits, e, config);
                let mut free = true;
                #[unroll]
                for i in 0..j {
                    free = free && chosen[i] != e;
                }
                if comptime!(config.groups.is_some()) {
                    free = free && closed[(e / comptime!(group_size(config))) as usize] == 0;
                }
                if free && (best == config.experts || rank > highest) {
                    best = e;
                    highest = rank;
                }
            }
            chosen[j] = best;
            let score = score_of(&buffers, &logits, best, config);
            scores[j] = score;
            sum += score;
        }
        let mut by = comptime!(config.scale.get()).runtime();
        if comptime!(config.normalize) {
            by /= sum;
        }
        #[unroll]
        for j in 0..comptime!(config.used as usize) {
            put(buffers.arena, routes + j as u32, f32::cast_from(chosen[j]));
            let place = routes + comptime!(config.used + j as u32);
            put(buffers.arena, place, scores[j] * by);
        }
    }
}

fn group_count(config: RouteConfig) -> u32 {
    config.groups.map_or(1, |g| g.count)
}

fn group_size(config: RouteConfig) -> u32 {
    config.experts / group_count(config)
}

#[cube]
fn survey(buffers: &Buffers<'_>, row: u32, #[comptime] config: RouteConfig) -> Logits {
    let at = buffers.args[comptime!(config.arg)] + row * config.experts;
    let mut most = buffers.arena[at as usize];
    for e in 1..config.experts {
        most = max(most, buffers.arena[(at + e) as usize]);
    }
    let mut total = 0.0f32;
    for e in 0..config.experts {
        total += (buffers.arena[(at + e) as usize] - most).exp();
    }
    Logits { at, most, total }
}

#[cube]
fn score_of(
    buffers: &Buffers<'_>,
    logits: &Logits,
    e: u32,
    #[comptime] config: RouteConfig,
) -> f32 {
    let logit = buffers.arena[(logits.at + e) as usize];
    match comptime!(config.score) {
        RouteScore::Softmax => (logit - logits.most).exp() / logits.total,
        RouteScore::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
    }
}

/// What experts are ordered by.
#[cube]
fn rank_of(buffers: &Buffers<'_>, logits: &Logits, e: u32, #[comptime] config: RouteConfig) -> f32 {
    match comptime!(config.bias) {
        Some(bias) => {
            let bias = buffers.vectors[(buffers.args[bias] + e) as usize];
            score_of(buffers, logits, e, config) + bias
        }
        None => buffers.arena[(logits.at + e) as usize],
    }
}

/// 1 for each group that is not taken.
#[cube]
fn closed_groups(
    buffers: &Buffers<'_>,
    logits: &Logits,
    #[comptime] config: RouteConfig,
) -> Array<u32> {
    let count = comptime!(group_count(config));
    let mut closed = Array::<u32>::new(comptime!(group_count(config) as usize));
    match comptime!(config.groups) {
        None => closed[0] = 0u32.runtime(),
        Some(groups) => {
            let size = comptime!(group_size(config));
            let mut scores = Array::<f32>::new(comptime!(group_count(config) as usize));
            for g in 0..count {
                let mut best = rank_of(buffers, logits, g * size, config);
                // Groups of one expert have none.
                let mut second = LOWEST.runtime();
                for i in 1..size {
                    let rank = rank_of(buffers, logits, g * size + i, config);
                    second = max(second, min(rank, best));
                    best = max(best, rank);
                }
                let score = match comptime!(groups.score) {
                    GroupScore::BestTwo if comptime!(size > 1) => best + second,
                    _ => best,
                };
                scores[g as usize] = score;
                closed[g as usize] = 1u32;
            }
            for _ in 0..groups.used {
                let mut pick = count.runtime();
                let mut highest = 0.0f32;
                for g in 0..count {
                    let score = scores[g as usize];
                    if closed[g as usize] == 1 && (pick == count || score > highest) {
                        pick = g;
                        highest = score;
                    }
                }
                closed[pick as usize] = 0u32;
            }
        }
    }
    closed
}
