//! The steps of a tile on [matrix units](super::matrix) over the depth: each loads the inputs and weights of a later one and adds the
//! products of its own.

use super::async_copies::{await_copies, close_copies};
use super::depth_shares::DepthShare;
use super::env::{Buffers, put};
use super::fragments::{ALIGNMENT, Halves};
use super::matrix::{DEPTH, MatrixConfig, STRIDE};
use super::matrix_product::{MatrixTile, Product, multiply};
use super::matrix_tiles::{input_shares, load_inputs, load_packed, load_weights};
use super::unit_lanes::{AlikeUnits, Lanes};
use cubecl::prelude::*;

/// Shared memory of a cube, whichever unit it works in.
#[derive(CubeType)]
pub struct CubeMemory {
    /// Norm factors of the rows.
    pub norms: Shared<[f32]>,
    /// Of each stage inputs and behind them weights, rows of [`STRIDE`] words; products before they are stored.
    pub tiles: Shared<[u32]>,
    /// What stands for matrix units exchanges; whether a tile [overflows()].
    pub exchange: Shared<[u32]>,
}

#[cube]
impl CubeMemory {
    /// Memory for a configuration.
    pub fn new(#[comptime] config: MatrixConfig) -> Self {
        CubeMemory {
            norms: Shared::<[f32]>::new_slice(comptime!(config.tile.rows as usize)),
            tiles: Shared::<[u32]>::new_aligned_slice(comptime!(config.tile_words()), ALIGNMENT),
            exchange: Shared::<[u32]>::new_slice(comptime!(config.exchange_words())),
        }
    }
}

/// The products of a tile over a share of the depth, and the squares of its inputs, with fragments that hold `halves`.
#[cube]
pub fn multiply_depth(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    squares: &mut Array<f32>,
    count: u32,
    row: u32,
    lanes: &Lanes,
    share: &DepthShare,
    #[comptime] halves: Halves,
    #[comptime] config: MatrixConfig,
    #[comptime] alike: AlikeUnits,
) {
    let parts = comptime!(alike.parts.len());
    let inputs = comptime!(config.inputs_of(parts));
    #[unroll]
    for i in 0..comptime!(parts * config.tile.sums()) {
        sums[i] = 0.0f32.runtime();
    }
    #[unroll]
    for i in 0..comptime!(input_shares(config.tile).rows as usize) {
        squares[i] = 0.0f32.runtime();
    }
    let stages = comptime!(config.stages);
    let mut slot = 0u32.runtime();
    #[unroll]
    for ahead in 0..comptime!(stages - 1) {
        load_tiles(
            buffers,
            memory,
            squares,
            count,
            row,
            lanes,
            (ahead.runtime(), share.from + ahead),
            share.to,
            Loads::All,
            halves,
            comptime!(config.clone()),
            comptime!(alike.clone()),
        );
    }
    let mut step = share.from;
    while step < share.to {
        // The oldest is there, and what lay where the newest comes was multiplied.
        if comptime!(config.native && stages > 1) {
            await_copies(comptime!(stages as usize - 2));
        }
        sync_cube();
        let newest = before(slot, stages);
        let ahead = step + comptime!(stages - 1);
        load_tiles(
            buffers,
            memory,
            squares,
            count,
            row,
            lanes,
            (newest, ahead),
            share.to,
            comptime!(if stages > 1 {
                Loads::Copied
            } else {
                Loads::All
            }),
            halves,
            comptime!(config.clone()),
            comptime!(alike.clone()),
        );
        if comptime!(stages == 1) {
            if comptime!(config.native) {
                await_copies(0usize);
            }
            sync_cube();
        }
        multiply_tiles(
            memory,
            sums,
            slot,
            inputs,
            parts,
            halves,
            comptime!(config.clone()),
        );
        if comptime!(stages > 1) {
            load_tiles(
                buffers,
                memory,
                squares,
                count,
                row,
                lanes,
                (newest, ahead),
                share.to,
                Loads::Made,
                halves,
                comptime!(config.clone()),
                comptime!(alike.clone()),
            );
        }
        slot = after(slot, stages);
        step += 1;
    }
    sync_cube();
}

/// The slot behind `slot`, of so many in a ring.
#[cube]
fn after(slot: u32, #[comptime] slots: u32) -> u32 {
    select(slot + 1 == slots, 0u32, slot + 1)
}

/// The slot before it.
#[cube]
fn before(slot: u32, #[comptime] slots: u32) -> u32 {
    select(slot == 0, comptime!(slots - 1), slot.max(1) - 1)
}

/// Whether a row's products are infinite or no numbers, for all units of the cube alike. They are in all lanes where one of its inputs
/// is, so that of each row and part that has inputs of its own a unit looks at one.
#[cube]
pub fn overflows(
    memory: &CubeMemory,
    sums: &Array<f32>,
    #[comptime] inputs: usize,
    #[comptime] tile: MatrixTile,
) -> bool {
    let fragments = comptime!(tile.fragments());
    let mut largest = 0u32.runtime();
    #[unroll]
    for i in 0..comptime!(inputs * tile.eights() as usize) {
        let sum = sums[comptime!(i / 2 * fragments * 4 + i % 2 * 2)];
        largest = max(largest, u32::reinterpret(sum) & 0x7f80_0000);
    }
    if UNIT_POS == 0 {
        put(&memory.exchange, 0u32, 0u32.runtime());
    }
    sync_cube();
    if largest == 0x7f80_0000 {
        put(&memory.exchange, 0u32, 1u32.runtime());
    }
    sync_cube();
    memory.exchange[0] == 1
}

/// What of a step is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Loads {
    All,
    /// What lies in memory as it is to be multiplied.
    Copied,
    /// What units make of what they read. In a loop it comes behind products, so that it can be read while those are made.
    Made,
}

impl Loads {
    /// Whether something is among it that is `copied`, or not.
    fn has(self, copied: bool) -> bool {
        match self {
            Loads::All => true,
            Loads::Copied => copied,
            Loads::Made => !copied,
        }
    }
}

/// A step of the depth in a slot (`place`), and the end of the group of its copies; from the `end` on nothing.
#[cube]
fn load_tiles(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    squares: &mut Array<f32>,
    count: u32,
    row: u32,
    lanes: &Lanes,
    place: (u32, u32),
    end: u32,
    #[comptime] which: Loads,
    #[comptime] halves: Halves,
    #[comptime] config: MatrixConfig,
    #[comptime] alike: AlikeUnits,
) {
    let (slot, step) = place;
    // What is read between products is not to wait for a branch: behind the last step that one is made again, for nobody.
    let always = comptime!(
        which == Loads::Made && config.contract.k.is_multiple_of(DEPTH) && !config.norms()
    )
    .runtime();
    if always || step < end {
        load_step(
            buffers,
            memory,
            squares,
            count,
            row,
            lanes,
            (slot, min(step, end - 1)),
            which,
            halves,
            comptime!(config.clone()),
            alike,
        );
    }
    if comptime!(config.native && which.has(true)) {
        close_copies();
    }
}

/// The weights of a unit's parts and the inputs that they have, a step of the depth in a slot (`place`).
#[cube]
fn load_step(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    squares: &mut Array<f32>,
    count: u32,
    row: u32,
    lanes: &Lanes,
    place: (u32, u32),
    #[comptime] which: Loads,
    #[comptime] halves: Halves,
    #[comptime] config: MatrixConfig,
    #[comptime] alike: AlikeUnits,
) {
    let inputs = comptime!(config.inputs_of(alike.parts.len()));
    let slot = place.0 * comptime!(config.stage_rows());
    let step = place.1;
    #[unroll]
    for p in 0..comptime!(alike.parts.len()) {
        if comptime!(which.has(config.by_words(alike.parts[p], halves))) {
            load_weights(
                buffers,
                &memory.tiles,
                lanes,
                step,
                slot,
                p,
                halves,
                comptime!(config.clone()),
                comptime!(alike.parts[p]),
            );
        }
        if comptime!(p < inputs && config.packed.is_some() && which.has(true)) {
            load_packed(
                buffers,
                &memory.tiles,
                count,
                row,
                step,
                slot,
                lanes.parts[p],
                p,
                comptime!(config.clone()),
            );
        } else if comptime!(p < inputs && config.packed.is_none() && which.has(false)) {
            load_inputs(
                buffers,
                &memory.tiles,
                squares,
                count,
                row,
                step,
                slot,
                lanes.parts[p],
                p,
                halves,
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
    slot: u32,
    #[comptime] inputs: usize,
    #[comptime] parts: usize,
    #[comptime] halves: Halves,
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
            slot * comptime!(config.stage_rows()),
            comptime!(Product {
                tile,
                left: (from * tile.rows, STRIDE),
                right: (config.weights_from() + p as u32 * tile.lanes, STRIDE),
                turned: false,
                depth: DEPTH,
                at: p * tile.sums(),
                halves,
            }),
        );
    }
}
