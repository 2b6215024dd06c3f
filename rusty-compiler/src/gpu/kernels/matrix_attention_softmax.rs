//! The running softmax of [attention on matrix units](super::matrix_attention), in units' registers: scores become weights where the
//! product with the keys leaves them, which is where the product with the values takes them from.
//!
//! Of each row of eight a unit has the elements of two columns in eight; the three units beside it have the others. Scores count in
//! powers of two, which devices have an instruction for: queries are scaled for that.

use super::attention_shape::{LOWEST, capped, visible};
use super::fragments::{PLANE, packed, power_of_two};
use super::matrix_attention::MatrixAttentionConfig;
use super::matrix_attention_blocks::turn_sums;
use super::matrix_attention_loads::CubeMemory;
use super::matrix_product::{load_left, multiply_step};
use cubecl::prelude::*;
use std::f32::consts::LOG2_E;

/// What a unit has of its plane's queries.
#[derive(CubeType)]
pub struct Running {
    /// Highest scores yet, one for each eight rows.
    pub highest: Array<f32>,
    /// Sums of the unit's own weights relative to those.
    pub totals: Array<f32>,
    /// Weighted values, `[fragment below][fragment beside][4]`.
    pub sums: Array<f32>,
    /// The step's scores, then weights, in the same order.
    pub scores: Array<f32>,
}

#[cube]
impl Running {
    /// Before the first key.
    pub fn new(#[comptime] config: MatrixAttentionConfig) -> Self {
        let eights = comptime!(2 * config.cut.below as usize);
        let lanes = comptime!(config.result().tile.sums());
        let mut highest = Array::<f32>::new(eights);
        let mut totals = Array::<f32>::new(eights);
        #[unroll]
        for e in 0..eights {
            highest[e] = LOWEST.runtime();
            totals[e] = 0.0f32.runtime();
        }
        let mut sums = Array::<f32>::new(lanes);
        #[unroll]
        for i in 0..lanes {
            sums[i] = 0.0f32.runtime();
        }
        Running {
            highest,
            totals,
            sums,
            scores: Array::<f32>::new(comptime!(config.scores().tile.sums())),
        }
    }
}

impl MatrixAttentionConfig {
    /// Factor on queries: scores in powers of two, unless they are capped first.
    pub fn query_scale(&self) -> f32 {
        let scale = self.shape.scale.get();
        match self.shape.softcap {
            Some(_) => scale,
            None => scale * LOG2_E,
        }
    }
}

/// Row of the cube's queries from which the unit's plane has some.
#[cube]
fn plane_row(#[comptime] config: MatrixAttentionConfig) -> u32 {
    let tile = comptime!(config.result().tile);
    UNIT_POS / PLANE / tile.across() * tile.plane_rows()
}

/// Scores of the step's keys; what a query may not see is [`LOWEST`].
#[cube]
pub fn score(
    memory: &CubeMemory,
    running: &mut Running,
    lowest: u32,
    rows: u32,
    key: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let product = comptime!(config.scores());
    let count = comptime!(product.tile.sums());
    #[unroll]
    for i in 0..count {
        running.scores[i] = 0.0f32.runtime();
    }
    let row = plane_row(comptime!(config.clone()));
    #[unroll]
    for step in 0..comptime!(product.depth / 16) {
        let mut left = Array::<u32>::new(comptime!(product.tile.below * 4));
        load_left(&memory.tiles, &mut left, row, step, product);
        multiply_step(
            &left,
            &memory.tiles,
            &memory.exchange,
            &mut running.scores,
            0u32,
            step,
            product,
        );
    }
    if comptime!(config.shape.softcap.is_some()) {
        #[unroll]
        for i in 0..count {
            running.scores[i] = capped(running.scores[i], comptime!(config.shape)) * LOG2_E;
        }
    }
    // All rows see all keys of most steps.
    let windowed = comptime!(config.shape.window.is_some());
    if windowed || key + config.cut.keys > lowest + 1 {
        hide(running, row, lowest, rows, key, config);
    }
}

/// Hides the keys that queries may not see.
#[cube]
fn hide(
    running: &mut Running,
    row: u32,
    lowest: u32,
    rows: u32,
    key: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let fragments = comptime!(config.scores().tile.fragments());
    let first = row + UNIT_POS % PLANE / 4;
    let column = key + UNIT_POS % 4 * 2;
    #[unroll]
    for eight in 0..comptime!(2 * config.cut.below as usize) {
        let query = first + comptime!((eight * 8) as u32);
        let own = lowest + min(query / comptime!(config.shape.group()), rows - 1);
        #[unroll]
        for i in 0..comptime!(fragments * 2) {
            let at = column + comptime!((i / 2 * 8 + i % 2) as u32);
            let to = comptime!(place(eight, i, fragments));
            let seen = visible(at, own, comptime!(config.shape));
            running.scores[to] = select(seen, running.scores[to], LOWEST);
        }
    }
}

/// Place of element `i` of the unit's row of eight number `eight`, among sums of `fragments` fragments side by side.
const fn place(eight: usize, i: usize, fragments: usize) -> usize {
    (eight / 2 * fragments + i / 2) * 4 + eight % 2 * 2 + i % 2
}

/// Scores become weights relative to the highest yet, and what was summed before is made relative to it, too.
#[cube]
pub fn soften(running: &mut Running, #[comptime] config: MatrixAttentionConfig) {
    let fragments = comptime!(config.scores().tile.fragments());
    let beside = comptime!(config.result().tile.fragments());
    #[unroll]
    for eight in 0..comptime!(2 * config.cut.below as usize) {
        let before = running.highest[eight];
        let mut highest = before;
        #[unroll]
        for i in 0..comptime!(fragments * 2) {
            highest = max(
                highest,
                running.scores[comptime!(place(eight, i, fragments))],
            );
        }
        highest = max(highest, plane_shuffle_xor(highest, 1u32));
        highest = max(highest, plane_shuffle_xor(highest, 2u32));
        // Relative to what is no score, hidden keys would count.
        let base = select(highest > LOWEST * 0.5, highest, 0.0f32);
        let factor = power_of_two(before - base, comptime!(config.native));
        let mut total = running.totals[eight] * factor;
        #[unroll]
        for i in 0..comptime!(fragments * 2) {
            let at = comptime!(place(eight, i, fragments));
            let weight = power_of_two(running.scores[at] - base, comptime!(config.native));
            running.scores[at] = weight;
            total += weight;
        }
        running.totals[eight] = total;
        running.highest[eight] = highest;
        #[unroll]
        for i in 0..comptime!(beside * 2) {
            running.sums[comptime!(place(eight, i, beside))] *= factor;
        }
    }
}

/// Adds the weighted values.
#[cube]
pub fn weigh(
    memory: &CubeMemory,
    running: &mut Running,
    #[comptime] config: MatrixAttentionConfig,
) {
    let product = comptime!(config.result());
    let (below, fragments) = comptime!((product.tile.below, config.scores().tile.fragments()));
    let lane = UNIT_POS / PLANE % product.tile.across() * product.tile.plane_lanes();
    #[unroll]
    for step in 0..comptime!(product.depth / 16) {
        let mut left = Array::<u32>::new(comptime!(below * 4));
        #[unroll]
        for i in 0..comptime!(below * 4) {
            // Words of a row, of that eight rows below, then both eight keys further.
            let (m, half, further) = comptime!((i / 4, i % 2, i / 2 % 2));
            let key = comptime!((step as usize * 2 + further) * 2);
            let low = running.scores[comptime!(place(m * 2 + half, key, fragments))];
            let high = running.scores[comptime!(place(m * 2 + half, key + 1, fragments))];
            left[i] = packed(low, high, comptime!(product.halves));
        }
        multiply_step(
            &left,
            &memory.tiles,
            &memory.exchange,
            &mut running.sums,
            lane,
            step,
            product,
        );
    }
}

/// Weighted values become their mean, and those that were rotated what they stood for.
#[cube]
pub fn finish_sums(running: &mut Running, #[comptime] config: MatrixAttentionConfig) {
    let tile = comptime!(config.result().tile);
    #[unroll]
    for eight in 0..comptime!(tile.eights() as usize) {
        let mut total = running.totals[eight];
        total += plane_shuffle_xor(total, 1u32);
        total += plane_shuffle_xor(total, 2u32);
        let inverse = 1.0 / total;
        #[unroll]
        for i in 0..comptime!(tile.fragments() * 2) {
            running.sums[comptime!(place(eight, i, tile.fragments()))] *= inverse;
        }
    }
    if comptime!(config.shape.kv.is_blocks()) {
        turn_sums(&mut running.sums, tile);
    }
}
