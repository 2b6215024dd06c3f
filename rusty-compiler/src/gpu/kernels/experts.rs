//! Products of few rows with the experts that each row takes, or with the matrices of all heads: [matrix-vector
//! products](super::gemv) whose weights are found by an expert's index, for one of a row's experts or for the sum over all of them.
//! Parts that share an input (gate and up) are multiplied side by side, and tails make of them what is stored. Experts lie at equal
//! distances in the weights. Limits: all experts of a part have one format.

use super::contract::{self, ContractConfig, lane_tile};
use super::env::{Buffers, bound, put};
use super::gemv_products::{add_products, span_of};
use super::gemv_sums::{CubeMemory, share, total_at};
use super::reduce::no_sums;
use super::sink::{Store, store_pair};
use super::unit_lanes::{Lanes, lanes_of_tile};
use cubecl::prelude::*;

/// Scalars of a launch. The first are those of a contraction's unit.
pub mod scalar {
    use super::contract::scalar as unit;

    /// First lane of the launch.
    pub const FIRST: usize = unit::FIRST;
    /// The lane behind its last.
    pub const END: usize = unit::END;
    /// Tiles of lanes.
    pub const TILES: usize = unit::TILES;
    /// Arena word of the inputs.
    pub const X: usize = unit::COUNT;
    /// Arena word of the routes.
    pub const ROUTES: usize = X + 1;
    /// Arena word of products that are left as they are.
    pub const OUT: usize = X + 2;
    const PARTS: usize = X + 3;

    /// Of a part, the byte of the first expert's row of the first lane.
    pub const fn rows(part: usize) -> usize {
        PARTS + 2 * part
    }

    /// Of a part, bytes from an expert to the next.
    pub const fn stride(part: usize) -> usize {
        rows(part) + 1
    }

    /// How many they are; those of tails come behind.
    pub const fn count(parts: usize) -> usize {
        rows(parts)
    }
}

/// What kernels of products are specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertsConfig {
    /// Header word of the row count.
    pub rows: usize,
    /// Input width.
    pub k: u32,
    /// Output width of an expert.
    pub n: u32,
    /// Experts that a row takes.
    pub used: u32,
    /// Whether a row's products are chosen by routes, or are all there are.
    pub routed: bool,
    /// Whether products are summed in the end: each has an input of its own.
    pub combine: bool,
    /// Products with each of a row's experts.
    pub parts: u32,
}

impl ExpertsConfig {
    /// Inputs that a row has.
    pub fn inputs_per_row(&self) -> u32 {
        match self.combine || !self.routed {
            true => self.used,
            false => 1,
        }
    }

    /// Lanes of a part's products of a row.
    pub fn part_lanes(&self) -> u32 {
        self.used * self.n
    }

    /// Lanes of all of a row's products.
    pub fn row_lanes(&self) -> u32 {
        self.parts * self.part_lanes()
    }
}

/// The same for few rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FewExpertsConfig {
    /// Which products.
    pub experts: ExpertsConfig,
    /// Those of one expert as a contraction of one unit.
    pub product: ContractConfig,
    /// Whether the launch sums them.
    pub sums: bool,
    /// What becomes of them; none where they are left as they are.
    pub tails: Vec<Store>,
}

impl FewExpertsConfig {
    /// Results that a row has.
    pub fn results_per_row(&self) -> u32 {
        match self.sums {
            true => 1,
            false => self.experts.used,
        }
    }
}

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
    let memory = CubeMemory::new(comptime!(config.product.clone()));
    if CUBE_POS_X < buffers.step[comptime!(config.experts.rows)] * per_row {
        let (lanes, product) = comptime!((config.product.cube_lanes(), config.product.clone()));
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
    let experts = comptime!(config.experts);
    let per_row = comptime!(config.results_per_row());
    let row = result / per_row;
    let routes = buffers.args[scalar::ROUTES] + row * comptime!(2 * experts.used);
    let count = comptime!(config.product.sums(experts.parts as usize));
    let mut sums = no_sums(count);
    for j in 0..comptime!(experts.used / per_row) {
        let place = result % per_row + j;
        let expert = match comptime!(experts.routed) {
            true => u32::cast_from(buffers.arena[(routes + place) as usize]),
            false => place,
        };
        let input = match comptime!(experts.inputs_per_row() > 1) {
            true => row * comptime!(experts.used) + place,
            false => row,
        };
        let own = lanes_of_expert(buffers, lanes, expert, comptime!(experts.parts as usize));
        let span = span_of(input, &own, Sequence::new());
        let mut products = no_sums(count);
        let mut squares = no_sums(1usize);
        let product = comptime!(config.product.clone());
        let alike = comptime!(config.product.alike()[0].clone());
        add_products(
            buffers,
            memory,
            &mut products,
            &mut squares,
            &span,
            product,
            alike,
        );
        let mut weight = 1.0f32.runtime();
        if comptime!(config.sums) {
            weight = buffers.arena[(routes + comptime!(experts.used) + place) as usize];
            // The next product's inputs take the place of this one's.
            sync_cube();
        }
        #[unroll]
        for i in 0..count {
            sums[i] += products[i] * weight;
        }
    }
    share(memory, &mut sums, comptime!(config.product.clone()), count);
    let local = UNIT_POS * 2;
    let there = UNIT_POS < comptime!(config.product.cube_lanes() / 2);
    if there && lanes.first + local < lanes.end {
        finish(buffers, memory, row, result % per_row, local, lanes, config);
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
    let at = total_at(0u32, local, parts, comptime!(config.product.clone()));
    let next = total_at(0u32, local + 1, parts, comptime!(config.product.clone()));
    #[unroll]
    for p in 0..parts {
        first.push(memory.totals[(at + comptime!(p as u32)) as usize]);
        second.push(memory.totals[(next + comptime!(p as u32)) as usize]);
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

/// The same lanes of expert `expert`; those given are the first's.
#[cube]
fn lanes_of_expert(
    buffers: &Buffers<'_>,
    lanes: &Lanes,
    expert: u32,
    #[comptime] parts: usize,
) -> Lanes {
    let mut rows = Sequence::<u32>::new();
    #[unroll]
    for p in 0..parts {
        rows.push(lanes.rows[p] + expert * buffers.args[comptime!(scalar::stride(p))]);
    }
    Lanes {
        first: lanes.first,
        end: lanes.end,
        unit: lanes.unit,
        rows,
        parts: lanes.parts.clone(),
    }
}
