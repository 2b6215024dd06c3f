//! Contraction for many rows on matrix units: a cube makes a tile of rows by lanes, whose inputs and dequantized weights it
//! holds in 16 bits in shared memory, several steps of the depth at once: what lies in memory as it is to be multiplied comes by copies that
//! nobody waits for while others are multiplied.
//!
//! Inputs and weights are rounded to bf16, as in the products of other bf16 implementations; sums are single precision. Where all
//! weights are stored in half precision they are multiplied as they lie, and inputs are rounded to that: three bits more of both.
//! Half precision ends at 65504, and models have inputs beyond it: a few lanes of rows before their norm (which is made
//! [last](super::norms)), and of gated products. Rows that are [packed](super::packed_inputs) are scaled for that. Small tiles make their
//! inputs themselves, of rows whose largest is not known before the first product: there what is beyond becomes infinite, and with it,
//! whatever the weights, all products of its row, which is looked for once at the end: such a tile is made again in bf16.
//! Below, what half precision lacks (2^-25 at most, where numbers are no longer normal) counts only in rows whose largest input is as
//! small as 1e-5.

use super::contract::{ContractConfig, PartConfig, TILE_DEPTH, finish_pair, lane_tile};
use super::depth_shares::{DepthShare, DepthShares, meet, shared_depth, whole_depth};
use super::env::{Buffers, bound};
use super::fragments::{Halves, exchange_words};
use super::matrix_depth::{CubeMemory, multiply_depth, overflows};
use super::matrix_product::{MatrixTile, UNITS, keep_eights, kept_row};
use super::matrix_tiles::input_shares;
use super::norms::tile_norms;
use super::packed_inputs::{PackedInputs, packed_factor};
use super::unit_lanes::{AlikeUnits, Lanes, lanes_of_tile};
use cubecl::prelude::*;
use rusty_loader::Format;

/// Elements of a weight's row in shared memory at once.
pub const DEPTH: u32 = TILE_DEPTH;
/// Words of a row of a tile: its elements in pairs, and as many more as leave its fragments in different banks.
pub const STRIDE: u32 = DEPTH / 2 + 4;

/// Stages at most: what is multiplied, and three steps ahead of it.
const MOST_STAGES: u32 = 4;

/// What a contraction kernel on matrix units is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatrixConfig {
    /// The contraction.
    pub contract: ContractConfig,
    /// The tile.
    pub tile: MatrixTile,
    /// Where cubes may [share the depth](super::depth_shares) of a tile.
    pub shares: Option<DepthShares>,
    /// Where inputs lie that were [packed](super::packed_inputs) before; else tiles make their own.
    pub packed: Option<PackedInputs>,
    /// Steps of the depth whose inputs and weights are in shared memory at once.
    pub stages: u32,
    /// Whether the language has the instruction.
    pub native: bool,
}

/// What the fragments of products with some parts hold: half precision where all weights are stored so, else bf16.
pub fn halves(parts: &[PartConfig], native: bool) -> Halves {
    Halves {
        f16: parts.iter().all(|p| p.format == Format::F16),
        native,
    }
}

impl MatrixConfig {
    /// What fragments hold at first.
    pub fn halves(&self) -> Halves {
        halves(&self.contract.parts, self.native)
    }

    /// The same with as many stages as fit: on devices that copy while they multiply, two cubes are to have room beside each other.
    pub fn with_stages(self, shared_bytes: u32) -> Self {
        let most = if self.packed.is_some() {
            MOST_STAGES
        } else {
            2
        };
        let room = if self.native {
            shared_bytes / 2
        } else {
            shared_bytes
        };
        let of = |stages| Self {
            stages,
            ..self.clone()
        };
        let mut all = (1..=most).rev().map(of);
        let fitting = all.find(|config| config.shared_bytes() <= room);
        fitting.unwrap_or_else(|| of(1))
    }

    /// Whether tiles sum the squares of a norm's inputs.
    pub fn norms(&self) -> bool {
        self.packed.is_none() && self.contract.prologue.late_norm().is_some()
    }

    /// Whether words of weights are fetched as they lie, for fragments that hold `halves`.
    pub fn by_words(&self, part: PartConfig, halves: Halves) -> bool {
        let own = if halves.f16 {
            Format::F16
        } else {
            Format::Bf16
        };
        part.format == own && self.contract.k.is_multiple_of(DEPTH)
    }

    /// Tiles of inputs of so many parts: adapters may change those of each.
    pub fn inputs_of(&self, parts: usize) -> usize {
        match self.contract.adapters {
            Some(_) => parts,
            None => 1,
        }
    }

    /// First row of the weights in the memory of both tiles, behind the inputs.
    pub fn weights_from(&self) -> u32 {
        self.inputs_of(self.contract.most_parts()) as u32 * self.tile.rows
    }

    /// Rows of a stage: inputs, and weights behind them.
    pub fn stage_rows(&self) -> u32 {
        self.weights_from() + self.contract.most_parts() as u32 * self.tile.lanes
    }

    /// Words of all stages; products lie there, too, eight rows of each plane.
    pub fn tile_words(&self) -> usize {
        let parts = self.contract.most_parts() as u32;
        let products = parts * self.tile.rows / self.tile.eights() * self.tile.lanes;
        (self.stages * self.stage_rows() * STRIDE).max(products) as usize
    }

    /// Words of what stands for matrix units.
    pub fn exchange_words(&self) -> usize {
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
    let share = whole_depth(comptime!(config.clone()));
    let row = share.row_tile * config.tile.rows;
    let memory = CubeMemory::new(comptime!(config.clone()));
    if row < count {
        #[unroll]
        for a in 0..comptime!(config.contract.alike().len()) {
            let alike = comptime!(config.contract.alike()[a].clone());
            let (inside, lanes) = lanes_of_tile(
                &buffers,
                lane_tile(),
                comptime!(config.tile.lanes),
                comptime!(config.contract.clone()),
                alike,
            );
            if inside {
                let alike = comptime!(config.contract.alike()[a].clone());
                let settings = comptime!(config.clone());
                let sums = tile_sums(
                    &buffers, &memory, count, row, &lanes, &share, settings, alike,
                );
                let alike = comptime!(config.contract.alike()[a].clone());
                let settings = comptime!(config.clone());
                finish(
                    &buffers, &memory, &sums, count, row, &lanes, settings, alike,
                );
            }
        }
    }
}

/// [`matrix()`] whose cubes may share the depth of a tile (`depth_shares.rs`). `counters` are zero before a launch and after it.
///
/// Cubes: `(rows / tile rows * shares, y * z >= tiles)`.
#[cube(launch_unchecked)]
pub fn matrix_sharing(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    counters: &[Atomic<u32>],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: MatrixConfig,
) {
    let count = step[comptime!(config.contract.rows)];
    // No tail stores keys or values.
    let buffers = bound(weights, arena, vectors, step, step, pool, args);
    let share = shared_depth(&buffers, comptime!(config.clone()));
    let row = share.row_tile * config.tile.rows;
    let memory = CubeMemory::new(comptime!(config.clone()));
    if row < count {
        #[unroll]
        for a in 0..comptime!(config.contract.alike().len()) {
            let alike = comptime!(config.contract.alike()[a].clone());
            let (inside, lanes) = lanes_of_tile(
                &buffers,
                lane_tile(),
                comptime!(config.tile.lanes),
                comptime!(config.contract.clone()),
                alike,
            );
            if inside {
                let alike = comptime!(config.contract.alike()[a].clone());
                let settings = comptime!(config.clone());
                let mut sums = tile_sums(
                    &buffers, &memory, count, row, &lanes, &share, settings, alike,
                );
                let parts = comptime!(config.contract.alike()[a].parts.len());
                let settings = comptime!(config.clone());
                if meet(&buffers, counters, &mut sums, &share, parts, settings) {
                    let alike = comptime!(config.contract.alike()[a].clone());
                    let settings = comptime!(config.clone());
                    finish(
                        &buffers, &memory, &sums, count, row, &lanes, settings, alike,
                    );
                }
            }
        }
    }
}

/// The sums of a unit's tile, of the cube's share of the depth.
#[cube]
fn tile_sums(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    count: u32,
    row: u32,
    lanes: &Lanes,
    share: &DepthShare,
    #[comptime] config: MatrixConfig,
    #[comptime] alike: AlikeUnits,
) -> Array<f32> {
    let tile = comptime!(config.tile);
    let mut sums = Array::<f32>::new(comptime!(alike.parts.len() * tile.sums()));
    let mut squares = Array::<f32>::new(comptime!(input_shares(tile).rows as usize));
    let halves = comptime!(config.halves());
    multiply_depth(
        buffers,
        memory,
        &mut sums,
        &mut squares,
        count,
        row,
        lanes,
        share,
        halves,
        comptime!(config.clone()),
        comptime!(alike.clone()),
    );
    if comptime!(halves.f16 && config.packed.is_none()) {
        let inputs = comptime!(config.inputs_of(alike.parts.len()));
        if overflows(memory, &sums, inputs, tile) {
            multiply_depth(
                buffers,
                memory,
                &mut sums,
                &mut squares,
                count,
                row,
                lanes,
                share,
                comptime!(Halves {
                    f16: false,
                    ..halves
                }),
                comptime!(config.clone()),
                comptime!(alike.clone()),
            );
        }
    }
    if comptime!(config.norms()) {
        tile_norms(
            &memory.norms,
            &memory.tiles,
            &squares,
            comptime!(input_shares(tile)),
            comptime!(config.contract.k),
            comptime!(config.contract.prologue.clone()),
        );
    }
    sums
}

/// Products go through the memory of the tiles by their bits, eight rows of each plane at a time, so that the tails are one piece of
/// code and units take neighbouring pairs of lanes.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &Array<f32>,
    count: u32,
    row: u32,
    lanes: &Lanes,
    #[comptime] config: MatrixConfig,
    #[comptime] alike: AlikeUnits,
) {
    let tile = comptime!(config.tile);
    let parts = comptime!(alike.parts.len());
    let some = comptime!(tile.rows / tile.eights());
    let products = &memory.tiles;
    let scaled = comptime!(config.packed.filter(|inputs| inputs.halves.f16));
    for eight in 0..comptime!(tile.eights()) {
        keep_eights(products, sums, eight, parts, tile);
        sync_cube();
        let mut task = UNIT_POS;
        while task < comptime!(some * tile.lanes / 2) {
            let (m, local) = (task / (tile.lanes / 2), task % (tile.lanes / 2) * 2);
            let own = kept_row(m, eight, tile);
            let at = row + own;
            if at < count && lanes.first + local < lanes.end {
                let mut scale = 1.0f32;
                if comptime!(config.norms()) {
                    scale = memory.norms[own as usize];
                }
                let mut pair = Array::<f32>::new(comptime!(parts * 2));
                #[unroll]
                for p in 0..parts {
                    if let Some(inputs) = comptime!(scaled) {
                        scale = packed_factor(buffers, at, lanes.parts[p], inputs);
                    }
                    #[unroll]
                    for side in 0..2usize {
                        let from = (comptime!(p as u32 * some) + m) * tile.lanes + local;
                        pair[comptime!(p * 2 + side)] =
                            f32::reinterpret(products[(from + side as u32) as usize]) * scale;
                    }
                }
                finish_pair(
                    buffers,
                    &mut pair,
                    at,
                    lanes.first + local,
                    lanes,
                    comptime!(config.contract.clone()),
                    comptime!(alike.clone()),
                );
            }
            task += UNITS;
        }
        sync_cube();
    }
}
