//! Products of few rows with the experts that each row takes, or with the matrices of all heads: [matrix-vector
//! products](super::gemv) whose weights are found by an expert's index, for one of a row's experts or for the sum over all of them.
//! Experts lie at equal distances in the weights. Limits: all experts of a kernel have one format.

use super::contract::{self, ContractConfig, lane_tile};
use super::env::{Buffers, bound, put};
use super::gemv_products::{add_products, span_of};
use super::gemv_sums::{CubeMemory, share};
use super::reduce::no_sums;
use super::unit_lanes::{Lanes, lanes_of_tile};
use cubecl::prelude::*;
use rusty_loader::Format;

/// Scalars of a launch. The first are those of a contraction's unit.
pub mod scalar {
    use super::contract::scalar as unit;

    /// First lane of the launch.
    pub const FIRST: usize = unit::FIRST;
    /// The lane behind its last.
    pub const END: usize = unit::END;
    /// Tiles of lanes.
    pub const TILES: usize = unit::TILES;
    /// Byte of the first expert's row of the first lane.
    pub const ROWS: usize = unit::COUNT;
    /// Bytes from an expert to the next.
    pub const STRIDE: usize = ROWS + 1;
    /// Arena word of the inputs.
    pub const X: usize = ROWS + 2;
    /// Arena word of the routes.
    pub const ROUTES: usize = ROWS + 3;
    /// Arena word of the result.
    pub const OUT: usize = ROWS + 4;
    /// How many they are.
    pub const COUNT: usize = ROWS + 5;
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
    /// Whether the launch sums them.
    pub sums: bool,
    /// Format of all experts.
    pub format: Format,
    /// Stored bytes of a row of an expert.
    pub row_bytes: u32,
}

impl ExpertsConfig {
    /// Inputs that a row has.
    pub fn inputs_per_row(&self) -> u32 {
        match self.combine || !self.routed {
            true => self.used,
            false => 1,
        }
    }

    /// Results that a row has.
    pub fn results_per_row(&self) -> u32 {
        if self.sums { 1 } else { self.used }
    }
}

/// The same for few rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FewExpertsConfig {
    /// Which products.
    pub experts: ExpertsConfig,
    /// One of them as a contraction of one part.
    pub product: ContractConfig,
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
    let per_row = comptime!(config.experts.results_per_row());
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
    let per_row = comptime!(experts.results_per_row());
    let row = result / per_row;
    let routes = buffers.args[scalar::ROUTES] + row * comptime!(2 * experts.used);
    let count = comptime!(config.product.sums(1));
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
        let own = lanes_behind(lanes, expert * buffers.args[scalar::STRIDE]);
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
        if comptime!(experts.sums) {
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
    let lane = lanes.first + UNIT_POS;
    if UNIT_POS < comptime!(config.product.cube_lanes()) && lane < lanes.end {
        let at = buffers.args[scalar::OUT] + result * comptime!(experts.n) + lane;
        put(buffers.arena, at, memory.totals[UNIT_POS as usize]);
    }
}

/// The same lanes of weights that lie `bytes` behind.
#[cube]
fn lanes_behind(lanes: &Lanes, bytes: u32) -> Lanes {
    let mut rows = Sequence::<u32>::new();
    rows.push(lanes.rows[0] + bytes);
    Lanes {
        first: lanes.first,
        end: lanes.end,
        unit: lanes.unit,
        rows,
        parts: lanes.parts.clone(),
    }
}
