//! Contraction for many rows on matrix units: a cube makes a tile of rows by lanes, whose inputs and dequantized weights it
//! holds in bf16 in shared memory. Other cubes of the same processor multiply while it fetches.
//!
//! Inputs and weights are rounded to bf16, as in the products of other bf16 implementations; sums are single precision.

use super::contract::{
    ContractConfig, TILE_DEPTH, UnitConfig, finish_pair, lane_in_unit, lane_tile, scalar,
};
use super::env::{Buffers, bound};
use super::fragments::{ALIGNMENT, Halves, exchange_words};
use super::matrix_product::{MatrixTile, PLANE_ROWS, Product, UNITS, keep_quarter, multiply};
use super::matrix_tiles::{input_shares, load_inputs, load_weights};
use super::norms::tile_norms;
use super::reduce::no_sums;
use cubecl::prelude::*;
use rusty_loader::Format;

/// Elements of a weight's row in shared memory at once.
pub const DEPTH: u32 = TILE_DEPTH;
/// Words of a row of a tile: its elements in pairs, and as many more as leave its fragments in different banks.
pub const STRIDE: u32 = DEPTH / 2 + 4;

/// What a contraction kernel on matrix units is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatrixConfig {
    /// The contraction.
    pub contract: ContractConfig,
    /// The tile.
    pub tile: MatrixTile,
    /// Whether the language has the instruction.
    pub native: bool,
}

impl MatrixConfig {
    /// Fragments are bf16.
    pub fn halves(&self) -> Halves {
        Halves {
            f16: false,
            native: self.native,
        }
    }

    /// Whether words of weights are fetched as they lie.
    pub fn by_words(&self, part: usize) -> bool {
        let bf16 = self.contract.parts[part].format == Format::Bf16;
        bf16 && self.contract.k.is_multiple_of(DEPTH)
    }

    /// Tiles of inputs: adapters may change those of each part.
    fn inputs(&self) -> usize {
        match self.contract.adapters {
            Some(_) => self.contract.most_parts(),
            None => 1,
        }
    }

    /// First row of the weights in the memory of both tiles, behind the inputs.
    pub fn weights_from(&self) -> u32 {
        self.inputs() as u32 * self.tile.rows
    }

    /// Words of the inputs and weights; products lie there, too, a quarter of a tile's rows.
    fn tile_words(&self) -> usize {
        let parts = self.contract.most_parts() as u32;
        let rows = self.weights_from() + parts * self.tile.lanes;
        let products = parts * self.tile.rows / 4 * self.tile.lanes;
        (rows * STRIDE).max(products) as usize
    }

    fn exchange_words(&self) -> usize {
        match self.native {
            true => 1,
            false => exchange_words(UNITS, self.tile.fragments()),
        }
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        let tiles = self.tile_words() + self.exchange_words();
        4 * (tiles as u32 + self.tile.rows)
    }
}

/// Cubes: `(rows / tile rows, y * z >= tiles)`.
#[cube(launch_unchecked)]
pub fn matrix(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: MatrixConfig,
) {
    let count = step[comptime!(config.contract.rows)];
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let tile = lane_tile();
    let row = CUBE_POS_X * config.tile.rows;
    let memory = CubeMemory::new(comptime!(config.clone()));
    if row < count {
        #[unroll]
        for u in 0..comptime!(config.contract.units.len()) {
            let (inside, first) = lane_in_unit(
                &buffers,
                tile,
                comptime!(config.tile.lanes),
                comptime!(config.contract.clone()),
                u,
            );
            if inside {
                unit_tile(
                    &buffers,
                    &memory,
                    count,
                    row,
                    first,
                    comptime!(config.clone()),
                    comptime!(config.contract.units[u].clone()),
                );
            }
        }
    }
}

/// Shared memory of a cube, whichever unit it works in.
#[derive(CubeType)]
struct CubeMemory {
    /// Norm factors of the rows.
    norms: Shared<[f32]>,
    /// Inputs and behind them weights, rows of [`STRIDE`] words; products before they are stored.
    tiles: Shared<[u32]>,
    /// What stands for matrix units exchanges.
    exchange: Shared<[u32]>,
}

#[cube]
impl CubeMemory {
    fn new(#[comptime] config: MatrixConfig) -> Self {
        CubeMemory {
            norms: Shared::<[f32]>::new_slice(comptime!(config.tile.rows as usize)),
            tiles: Shared::<[u32]>::new_aligned_slice(comptime!(config.tile_words()), ALIGNMENT),
            exchange: Shared::<[u32]>::new_slice(comptime!(config.exchange_words())),
        }
    }
}

#[cube]
fn unit_tile(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    count: u32,
    row: u32,
    first: u32,
    #[comptime] config: MatrixConfig,
    #[comptime] unit: UnitConfig,
) {
    let parts = comptime!(unit.parts.len());
    let tile = comptime!(config.tile);
    let inputs = comptime!(if config.contract.adapters.is_some() {
        parts
    } else {
        1
    });
    let end = buffers.args[comptime!(unit.arg + scalar::END)];
    let mut sums = Array::<f32>::new(comptime!(parts * tile.fragments() * 8));
    let mut squares = no_sums(comptime!(input_shares(tile).rows as usize));
    let mut depth = 0u32.runtime();
    while depth < config.contract.k {
        load_tiles(
            buffers,
            memory,
            &mut squares,
            count,
            row,
            first,
            depth,
            inputs,
            comptime!(config.clone()),
            comptime!(unit.clone()),
        );
        sync_cube();
        multiply_tiles(memory, &mut sums, inputs, parts, comptime!(config.clone()));
        sync_cube();
        depth += DEPTH;
    }
    if comptime!(config.contract.prologue.late_norm().is_some()) {
        tile_norms(
            &memory.norms,
            &memory.tiles,
            &squares,
            comptime!(input_shares(tile)),
            comptime!(config.contract.k),
            comptime!(config.contract.prologue.clone()),
        );
    }
    finish(buffers, memory, &sums, count, row, first, end, config, unit);
}

/// The weights of a unit's parts and the first `inputs` of their inputs, a step of the depth.
#[cube]
fn load_tiles(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    squares: &mut Array<f32>,
    count: u32,
    row: u32,
    first: u32,
    depth: u32,
    #[comptime] inputs: usize,
    #[comptime] config: MatrixConfig,
    #[comptime] unit: UnitConfig,
) {
    #[unroll]
    for p in 0..comptime!(unit.parts.len()) {
        load_weights(
            buffers,
            &memory.tiles,
            first,
            depth,
            p,
            comptime!(config.clone()),
            comptime!(unit.clone()),
        );
        if comptime!(p < inputs) {
            load_inputs(
                buffers,
                &memory.tiles,
                squares,
                count,
                row,
                depth,
                p,
                comptime!(unit.parts[p]),
                comptime!(config.clone()),
            );
        }
    }
}

/// Adds the products of the inputs' tiles, one or one for each part, with those of the weights.
#[cube]
fn multiply_tiles(
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    #[comptime] inputs: usize,
    #[comptime] parts: usize,
    #[comptime] config: MatrixConfig,
) {
    let tile = comptime!(config.tile);
    #[unroll]
    for p in 0..parts {
        let from = comptime!((if inputs > 1 { p } else { 0 }) as u32);
        multiply(
            &memory.tiles,
            &memory.tiles,
            &memory.exchange,
            sums,
            comptime!(Product {
                tile,
                left: (from * tile.rows, STRIDE),
                right: (config.weights_from() + p as u32 * tile.lanes, STRIDE),
                depth: DEPTH,
                at: p * tile.fragments() * 8,
                halves: config.halves(),
            }),
        );
    }
}

/// Products go through the memory of the tiles by their bits, a quarter at a time (of both fragments below each other the upper
/// or lower half), so that the tails are one piece of code and units take neighbouring pairs of lanes.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &Array<f32>,
    count: u32,
    row: u32,
    first: u32,
    end: u32,
    #[comptime] config: MatrixConfig,
    #[comptime] unit: UnitConfig,
) {
    let tile = comptime!(config.tile);
    let parts = comptime!(unit.parts.len());
    let quarter = comptime!(tile.rows / 4);
    let products = &memory.tiles;
    for q in 0..4u32 {
        keep_quarter(products, sums, q, parts, tile);
        sync_cube();
        let mut task = UNIT_POS;
        while task < comptime!(quarter * tile.lanes / 2) {
            let (m, local) = (task / (tile.lanes / 2), task % (tile.lanes / 2) * 2);
            // Of each plane's rows eight.
            let own = m / 8 * PLANE_ROWS + q * 8 + m % 8;
            let at = row + own;
            if at < count && first + local < end {
                let mut scale = 1.0f32;
                if comptime!(config.contract.prologue.late_norm().is_some()) {
                    scale = memory.norms[own as usize];
                }
                let mut pair = Array::<f32>::new(comptime!(parts * 2));
                #[unroll]
                for p in 0..parts {
                    #[unroll]
                    for side in 0..2usize {
                        let from = (comptime!(p as u32 * quarter) + m) * tile.lanes + local;
                        pair[comptime!(p * 2 + side)] =
                            f32::reinterpret(products[(from + side as u32) as usize]) * scale;
                    }
                }
                finish_pair(
                    buffers,
                    &pair,
                    at,
                    first + local,
                    end,
                    comptime!(unit.clone()),
                    comptime!(config.contract.parts.len()),
                    comptime!(config.contract.adapters),
                );
            }
            task += UNITS;
        }
        sync_cube();
    }
}
