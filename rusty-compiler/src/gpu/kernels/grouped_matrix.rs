//! A tile of [products with experts](super::grouped) on matrix units: gathered inputs are rounded to bf16, and weights dequantized to it, as
//! for [other products](super::matrix). Limits: inputs and weights of one step of the depth are in shared memory at a time, so that
//! nothing is fetched while tiles are multiplied but by other cubes.

use super::async_copies::{await_copies, close_copies};
use super::contract::ContractConfig;
use super::env::{Buffers, put};
use super::experts::{ExpertsConfig, scalar};
use super::fragments::{Halves, packed};
use super::grouped::{GroupedMemory, expert_start, product_input, product_lanes};
use super::matrix::{DEPTH, MatrixConfig, STRIDE};
use super::matrix_product::{MatrixTile, Product, UNITS, keep_eights, kept_row, multiply};
use super::matrix_tiles::{input_shares, load_weights};
use super::unit_lanes::Lanes;
use cubecl::prelude::*;

/// The tile: few experts have more rows of a prompt than a few dozen.
const TILE: MatrixTile = MatrixTile {
    rows: 64,
    lanes: 64,
    below: 2,
};

// All that gather multiply.
const _: () = assert!(UNITS == super::tile::UNITS);

/// What a product with an expert is specialised for.
pub fn config(contract: ContractConfig, native: bool) -> MatrixConfig {
    MatrixConfig {
        contract,
        tile: TILE,
        shares: None,
        packed: None,
        stages: 1,
        native,
    }
}

/// The first `count` gathered products, lanes from `lane` on.
#[cube]
pub fn matrix_tile(
    buffers: &Buffers<'_>,
    memory: &GroupedMemory,
    count: u32,
    lane: u32,
    #[comptime] config: MatrixConfig,
    #[comptime] experts: ExpertsConfig,
) {
    let tile = comptime!(config.tile);
    let part = comptime!(config.contract.parts[0]);
    let first = buffers.args[scalar::FIRST];
    let mut rows = Sequence::<u32>::new();
    rows.push(expert_start(buffers) + (lane - first) * comptime!(part.row_bytes));
    let mut parts = Sequence::<u32>::new();
    parts.push(0u32.runtime());
    let lanes = Lanes {
        first: lane,
        end: buffers.args[scalar::END],
        unit: 0u32.runtime(),
        rows,
        parts,
    };
    let sums = tile_sums(buffers, memory, count, &lanes, config, experts);
    store(buffers, memory, &sums, count, &lanes, tile, experts);
}

/// The sums of a unit's tile.
#[cube]
fn tile_sums(
    buffers: &Buffers<'_>,
    memory: &GroupedMemory,
    count: u32,
    lanes: &Lanes,
    #[comptime] config: MatrixConfig,
    #[comptime] experts: ExpertsConfig,
) -> Array<f32> {
    let tile = comptime!(config.tile);
    let part = comptime!(config.contract.parts[0]);
    // F16, too: inputs may be beyond half precision.
    let halves = comptime!(Halves {
        f16: false,
        native: config.native,
    });
    let mut sums = Array::<f32>::new(comptime!(tile.sums()));
    #[unroll]
    for i in 0..comptime!(tile.sums()) {
        sums[i] = 0.0f32.runtime();
    }
    for step in 0..comptime!(experts.k.div_ceil(DEPTH)) {
        load_gathered(buffers, memory, count, step, tile, halves, experts);
        load_weights(
            buffers,
            &memory.tiles,
            lanes,
            step,
            0u32.runtime(),
            0usize,
            halves,
            comptime!(config.clone()),
            part,
        );
        if comptime!(config.native) {
            close_copies();
            await_copies(0usize);
        }
        sync_cube();
        multiply(
            &memory.tiles,
            &memory.tiles,
            &memory.exchange,
            &mut sums,
            0u32.runtime(),
            comptime!(Product {
                tile,
                left: (0, STRIDE),
                right: (config.weights_from(), STRIDE),
                turned: false,
                depth: DEPTH,
                at: 0,
                halves,
            }),
        );
        sync_cube();
    }
    sums
}

/// The inputs of the gathered products of a step of the depth, two in a word; zero past the row's end. Rows behind the last repeat it.
#[cube]
fn load_gathered(
    buffers: &Buffers<'_>,
    memory: &GroupedMemory,
    count: u32,
    step: u32,
    #[comptime] tile: MatrixTile,
    #[comptime] halves: Halves,
    #[comptime] experts: ExpertsConfig,
) {
    let words = comptime!(DEPTH / 2);
    let word = UNIT_POS % words;
    let lane = step * DEPTH + word * 2;
    #[unroll]
    for i in 0..comptime!(input_shares(tile).rows) {
        let m = UNIT_POS / words + comptime!(i * (UNITS / words));
        let row = product_input(
            buffers,
            memory.products[min(m, count - 1) as usize],
            experts,
        );
        let mut pair = Array::<f32>::new(2usize);
        #[unroll]
        for side in 0..2u32 {
            let mut value = 0.0f32;
            if lane + side < experts.k {
                value = buffers.arena[(row + lane + side) as usize];
            }
            pair[side as usize] = value;
        }
        let value = packed(pair[0], pair[1], halves);
        put(&memory.tiles, m * STRIDE + word, value);
    }
}

/// Stores the sums of the first `count` products, through the memory of the tiles, so that units take neighbouring lanes.
#[cube]
fn store(
    buffers: &Buffers<'_>,
    memory: &GroupedMemory,
    sums: &Array<f32>,
    count: u32,
    lanes: &Lanes,
    #[comptime] tile: MatrixTile,
    #[comptime] experts: ExpertsConfig,
) {
    let some = comptime!(tile.rows / tile.eights());
    for eight in 0..comptime!(tile.eights()) {
        keep_eights(&memory.tiles, sums, eight, 1usize, tile);
        sync_cube();
        let mut task = UNIT_POS;
        while task < comptime!(some * tile.lanes) {
            let (m, local) = (task / tile.lanes, task % tile.lanes);
            let own = kept_row(m, eight, tile);
            let lane = lanes.first + local;
            if own < count && lane < lanes.end {
                let at = product_lanes(buffers, memory.products[own as usize], experts) + lane;
                let sum = f32::reinterpret(memory.tiles[(m * tile.lanes + local) as usize]);
                put(buffers.arena, at, sum);
            }
            task += UNITS;
        }
        sync_cube();
    }
}
