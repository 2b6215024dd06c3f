//! Products of few rows with the experts that each row takes, or with the matrices of all heads: [matrix-vector
//! products](super::gemv) whose weights are found by an expert's index, for one of a row's experts or for the sum over all of them.
//! Parts that share an input (gate and up) are multiplied side by side, and tails make of them what is stored. Experts lie at equal
//! distances in the weights. Limits: all experts of a part have one format.

use super::contract::lane_tile;
use super::env::{Buffers, bound, put};
use super::expert_sums::{sum_in_turn, sum_side_by_side, total_of};
use super::experts::{FewExpertsConfig, Summing, scalar};
use super::gemv_sums::{CubeMemory, share};
use super::reduce::no_sums;
use super::sink::store_pair;
use super::unit_lanes::{Lanes, lanes_of_tile};
use cubecl::prelude::*;

/// Cubes: `(results of all rows, y * z >= tiles)`.
#[cube(launch_unchecked)]
pub fn experts(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: FewExpertsConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let per_row = comptime!(config.results_per_row());
    let memory = CubeMemory::new(
        comptime!(config.product.clone()),
        comptime!(config.segments()),
    );
    if CUBE_POS_X < buffers.step[comptime!(config.experts.rows)] * per_row {
        let (lanes, product) = comptime!((config.cube_lanes(), config.product.clone()));
        let alike = comptime!(config.product.alike()[0].clone());
        let (inside, lanes) = lanes_of_tile(&buffers, lane_tile(), lanes, product, alike);
        if inside {
            result_lanes(&buffers, &memory, CUBE_POS_X, &lanes, config);
        }
    }
}

/// The cube's lanes, which are the first expert's, of result `result`, a product or a row's sum of products.
#[cube]
fn result_lanes(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    result: u32,
    lanes: &Lanes,
    #[comptime] config: FewExpertsConfig,
) {
    let per_row = comptime!(config.results_per_row());
    let (row, place) = (result / per_row, result % per_row);
    let count = comptime!(config.product.sums(config.experts.parts as usize));
    let mut sums = no_sums(count);
    match comptime!(config.sums) {
        Summing::SideBySide => {
            sum_side_by_side(
                buffers,
                memory,
                &mut sums,
                row,
                lanes,
                comptime!(config.clone()),
            );
        }
        Summing::Nothing | Summing::InTurn => {
            let settings = comptime!(config.clone());
            sum_in_turn(buffers, memory, &mut sums, row, place, lanes, settings);
        }
    }
    share(memory, &mut sums, comptime!(config.product.clone()), count);
    let local = UNIT_POS * 2;
    let there = UNIT_POS < comptime!(config.cube_lanes() / 2);
    if there && lanes.first + local < lanes.end {
        finish(buffers, memory, row, place, local, lanes, config);
    }
}

/// What becomes of a pair of the cube's lanes, from `local` on, of a row's products with the expert at `place`, or of their sums.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    row: u32,
    place: u32,
    local: u32,
    lanes: &Lanes,
    #[comptime] config: FewExpertsConfig,
) {
    let experts = comptime!(config.experts);
    let parts = comptime!(experts.parts as usize);
    let lane = place * comptime!(experts.n) + lanes.first + local;
    let end = place * comptime!(experts.n) + lanes.end;
    let mut first = Sequence::<f32>::new();
    let mut second = Sequence::<f32>::new();
    #[unroll]
    for p in 0..parts {
        first.push(total_of(memory, local, comptime!(config.clone()), p));
        second.push(total_of(memory, local + 1, comptime!(config.clone()), p));
    }
    if comptime!(config.tails.is_empty()) {
        let out = buffers.args[scalar::OUT] + row * comptime!(experts.row_lanes()) + lane;
        #[unroll]
        for p in 0..parts {
            let at = out + comptime!(p as u32 * experts.part_lanes());
            put(buffers.arena, at, first[p]);
            if lane + 1 < end {
                put(buffers.arena, at + 1, second[p]);
            }
        }
    }
    let factors = Sequence::<f32>::new();
    #[unroll]
    for t in 0..comptime!(config.tails.len()) {
        let tail = comptime!(config.tails[t].clone());
        store_pair(
            buffers, &first, &second, &factors, 0u32, row, lane, end, tail,
        );
    }
}
