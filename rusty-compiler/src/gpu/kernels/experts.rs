//! Experts: which ones each row takes, and the products with those.
//!
//! Products take one lane of one row per cube, for one of the row's experts or for the sum over all of them: experts lie
//! at equal distances in the weights, so that the chosen one's rows are found by its index. Limits: all experts of a
//! kernel have one format.

use super::contract::tile_number;
use super::decode::{RUN, decode_run};
use super::env::{bound, put};
use super::reduce::{Team, cube_sum};
use crate::plan::F32;
use cubecl::prelude::*;
use rusty_graph::RouteScore;
use rusty_loader::Format;

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
    /// Whether weights are divided by their sum.
    pub normalize: bool,
    /// Factor on the weights.
    pub scale: F32,
    /// First of two scalars: arena words of the logits and of the routes.
    pub arg: usize,
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
        let logits = buffers.args[comptime!(config.arg)] + row * config.experts;
        let routes = buffers.args[comptime!(config.arg + 1)] + row * comptime!(2 * config.used);
        let mut most = buffers.arena[logits as usize];
        for e in 1..config.experts {
            most = max(most, buffers.arena[(logits + e) as usize]);
        }
        let mut total = 0.0f32;
        for e in 0..config.experts {
            total += (buffers.arena[(logits + e) as usize] - most).exp();
        }
        let mut chosen = Array::<u32>::new(comptime!(config.used as usize));
        let mut scores = Array::<f32>::new(comptime!(config.used as usize));
        let mut sum = 0.0f32;
        #[unroll]
        for j in 0..comptime!(config.used as usize) {
            let mut best = comptime!(config.experts).runtime();
            let mut highest = 0.0f32;
            for e in 0..config.experts {
                let logit = buffers.arena[(logits + e) as usize];
                let mut free = true;
                #[unroll]
                for i in 0..j {
                    free = free && chosen[i] != e;
                }
                if free && (best == config.experts || logit > highest) {
                    best = e;
                    highest = logit;
                }
            }
            chosen[j] = best;
            let score = match comptime!(config.score) {
                RouteScore::Softmax => (highest - most).exp() / total,
                RouteScore::Sigmoid => 1.0 / (1.0 + (-highest).exp()),
            };
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

/// What a kernel of products is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertsConfig {
    /// How units work together.
    pub team: Team,
    /// Header word of the row count.
    pub rows: usize,
    /// Input width.
    pub k: u32,
    /// Output width of an expert.
    pub n: u32,
    /// Experts that a row takes.
    pub used: u32,
    /// Whether products are summed.
    pub combine: bool,
    /// Format of all experts.
    pub format: Format,
    /// Stored bytes of a row of an expert.
    pub row_bytes: u32,
    /// First of seven scalars: arena words of the inputs, the routes and the result; first lane of the launch and the
    /// lane behind its last; byte of the first expert's first lane, bytes from an expert to the next.
    pub arg: usize,
}

/// Cubes: `(x * y >= lanes, z = rows, times the experts of a row where products are not summed)`.
#[cube(launch_unchecked)]
pub fn experts(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: ExpertsConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let per_row = comptime!(if config.combine { 1 } else { config.used });
    let row = CUBE_POS_Z / per_row;
    let first = buffers.args[comptime!(config.arg + 3)];
    let lane = first + tile_number();
    if row < buffers.step[comptime!(config.rows)] && lane < buffers.args[comptime!(config.arg + 4)]
    {
        let places = comptime!(if config.combine { config.used } else { 1 });
        let routes = buffers.args[comptime!(config.arg + 1)] + row * comptime!(2 * config.used);
        let base = buffers.args[comptime!(config.arg + 5)] + (lane - first) * config.row_bytes;
        let stride = buffers.args[comptime!(config.arg + 6)];
        let x = buffers.args[comptime!(config.arg)] + row * comptime!(config.k * places);
        let runs = comptime!(config.k.div_ceil(RUN as u32));
        let mut w = Array::<f32>::new(RUN);
        let mut sum = 0.0f32;
        #[unroll]
        for j in 0..places {
            let place = if comptime!(config.combine) {
                j.runtime()
            } else {
                CUBE_POS_Z % per_row
            };
            let expert = u32::cast_from(buffers.arena[(routes + place) as usize]);
            let inputs = x + comptime!(j * config.k);
            let mut product = 0.0f32;
            let mut run = UNIT_POS;
            while run < runs {
                let address = base + expert * stride;
                decode_run(
                    &buffers,
                    address,
                    run,
                    &mut w,
                    comptime!(config.format),
                    comptime!(config.k),
                );
                #[unroll]
                for i in 0..RUN {
                    let at = min(
                        run * RUN as u32 + i as u32,
                        comptime!(config.k - 1).runtime(),
                    );
                    product += w[i] * buffers.arena[(inputs + at) as usize];
                }
                run += comptime!(config.team.units);
            }
            if comptime!(config.combine) {
                product *= buffers.arena[(routes + comptime!(config.used) + place) as usize];
            }
            sum += product;
        }
        let total = cube_sum(sum, comptime!(config.team));
        if UNIT_POS == 0 {
            let out = buffers.args[comptime!(config.arg + 2)];
            let at = CUBE_POS_Z * config.n + lane;
            put(buffers.arena, out + at, total);
        }
    }
}
