//! Products of few rows with the experts that each row takes, or with the matrices of all heads.
//!
//! They take one lane of one row per cube, for one of the row's experts or for the sum over all of them: experts lie
//! at equal distances in the weights, so that the chosen one's rows are found by its index. Limits: all experts of a
//! kernel have one format.

use super::contract::tile_number;
use super::decode::{RUN, run_product, run_total};
use super::env::{Buffers, bound, put};
use super::reduce::{Team, cube_sum};
use cubecl::prelude::*;
use rusty_loader::Format;

/// Scalars of a launch, counted from [`ExpertsConfig::arg`].
pub mod scalar {
    /// Arena word of the inputs.
    pub const X: usize = 0;
    /// Arena word of the routes.
    pub const ROUTES: usize = 1;
    /// Arena word of the result.
    pub const OUT: usize = 2;
    /// First lane of the launch.
    pub const FIRST: usize = 3;
    /// The lane behind its last.
    pub const END: usize = 4;
    /// Byte of the first expert's row of the first lane.
    pub const ROWS: usize = 5;
    /// Bytes from an expert to the next.
    pub const STRIDE: usize = 6;
    /// How many they are.
    pub const COUNT: usize = 7;
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
    /// Whether a row's products are chosen by routes, or are all there are.
    pub routed: bool,
    /// Whether products are summed.
    pub combine: bool,
    /// Format of all experts.
    pub format: Format,
    /// Stored bytes of a row of an expert.
    pub row_bytes: u32,
    /// First of the launch's [scalars](scalar).
    pub arg: usize,
}

impl ExpertsConfig {
    /// Inputs that a row has.
    pub fn inputs_per_row(&self) -> u32 {
        match self.combine || !self.routed {
            true => self.used,
            false => 1,
        }
    }
}

/// Cubes: `(x * y >= lanes, z <= rows, times the experts of a row where products are not summed)`.
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
    let first = buffers.args[comptime!(config.arg + scalar::FIRST)];
    let lane = first + tile_number();
    if lane < buffers.args[comptime!(config.arg + scalar::END)] {
        let pairs = buffers.step[comptime!(config.rows)] * per_row;
        // A grid may have fewer layers than there are pairs.
        let mut pair = CUBE_POS_Z;
        while pair < pairs {
            product_lane(&buffers, pair, lane, first, config);
            pair += CUBE_COUNT_Z;
        }
    }
}

/// One lane of one product, or of a row's sum of products.
#[cube]
fn product_lane(
    buffers: &Buffers<'_>,
    pair: u32,
    lane: u32,
    first: u32,
    #[comptime] config: ExpertsConfig,
) {
    let per_row = comptime!(if config.combine { 1 } else { config.used });
    let row = pair / per_row;
    let places = comptime!(if config.combine { config.used } else { 1 });
    let inputs_per_row = comptime!(config.inputs_per_row());
    let routes =
        buffers.args[comptime!(config.arg + scalar::ROUTES)] + row * comptime!(2 * config.used);
    let base =
        buffers.args[comptime!(config.arg + scalar::ROWS)] + (lane - first) * config.row_bytes;
    let stride = buffers.args[comptime!(config.arg + scalar::STRIDE)];
    let x = buffers.args[comptime!(config.arg + scalar::X)]
        + row * comptime!(config.k * inputs_per_row);
    let mut sum = 0.0f32;
    #[unroll]
    for j in 0..places {
        let place = if comptime!(config.combine) {
            j.runtime()
        } else {
            pair % per_row
        };
        let expert = match comptime!(config.routed) {
            true => u32::cast_from(buffers.arena[(routes + place) as usize]),
            false => place,
        };
        let inputs = match comptime!(inputs_per_row > 1) {
            true => x + place * config.k,
            false => x,
        };
        let mut product = unit_product(buffers, base + expert * stride, inputs, config);
        if comptime!(config.combine) {
            product *= buffers.arena[(routes + comptime!(config.used) + place) as usize];
        }
        sum += product;
    }
    let total = cube_sum(sum, comptime!(config.team));
    if UNIT_POS == 0 {
        let out = buffers.args[comptime!(config.arg + scalar::OUT)];
        let at = pair * config.n + lane;
        put(buffers.arena, out + at, total);
    }
}

/// This unit's part of the product of the row that starts at byte `row` with the inputs from word `inputs` on.
#[cube]
fn unit_product(
    buffers: &Buffers<'_>,
    row: u32,
    inputs: u32,
    #[comptime] config: ExpertsConfig,
) -> f32 {
    let runs = comptime!(config.k.div_ceil(RUN as u32));
    let last = comptime!(config.k - 1);
    let mut values = Array::<f32>::new(RUN);
    let mut product = 0.0f32;
    let mut run = UNIT_POS;
    while run < runs {
        #[unroll]
        for i in 0..RUN {
            let at = min(run * RUN as u32 + i as u32, last.runtime());
            values[i] = buffers.arena[(inputs + at) as usize];
        }
        product += run_product(
            buffers,
            row,
            run,
            &values,
            run_total(&values, 0usize, comptime!(config.format)),
            0usize,
            comptime!(config.format),
            comptime!(config.k),
        );
        run += comptime!(config.team.units);
    }
    product
}
