//! Shares of a product's depth: where a step has few tiles, several cubes make the sums of one on [matrix units](super::matrix), each of
//! a part of the depth, and leave them in the arena. The cube that comes last adds them up, always in the same order, and does the rest:
//! no launch more. (Split-K, as in CUTLASS, "Efficient GEMM in CUDA", "Parallelized reductions".)

use super::arrivals::{is_last, reset};
use super::contract::{ContractConfig, lane_tile, scalar};
use super::env::{Buffers, put};
use super::matrix::{DEPTH, MatrixConfig};
use super::matrix_product::{MatrixTile, UNITS};
use cubecl::prelude::*;

/// The scalars of a launch whose tiles are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DepthShares {
    /// How many cubes share a tile.
    pub count: usize,
    /// Word of the arena where they leave their sums.
    pub left: usize,
}

/// The part of a tile that a cube makes.
#[derive(CubeType)]
pub struct DepthShare {
    /// The tile among those of the same lanes.
    pub row_tile: u32,
    /// Steps of the depth at which its part begins and ends.
    pub from: u32,
    pub to: u32,
    /// Which of how many it is.
    number: u32,
    count: u32,
}

/// All of the depth.
#[cube]
pub fn whole_depth(#[comptime] config: MatrixConfig) -> DepthShare {
    DepthShare {
        row_tile: CUBE_POS_X,
        from: 0u32.runtime(),
        to: comptime!(config.steps()).runtime(),
        number: 0u32.runtime(),
        count: 1u32.runtime(),
    }
}

/// What the cube has of it where tiles are shared.
#[cube]
pub fn shared_depth(buffers: &Buffers<'_>, #[comptime] config: MatrixConfig) -> DepthShare {
    let count = buffers.args[comptime!(config.shared().count)];
    let number = CUBE_POS_X % count;
    let steps = comptime!(config.steps()).runtime();
    DepthShare {
        row_tile: CUBE_POS_X / count,
        from: number * steps / count,
        to: (number + 1) * steps / count,
        number,
        count,
    }
}

/// Leaves a cube's `sums`; the one that comes last, which it says it is, has those of all then.
#[cube]
pub fn meet(
    buffers: &Buffers<'_>,
    counters: &[Atomic<u32>],
    sums: &mut Array<f32>,
    share: &DepthShare,
    #[comptime] parts: usize,
    #[comptime] config: MatrixConfig,
) -> bool {
    let mut last = true.runtime();
    if share.count > 1 {
        let sums_of_unit = comptime!(parts * config.tile.sums());
        let tiles = buffers.args[comptime!(config.last_unit() + scalar::TILES)];
        let tile = share.row_tile * tiles + lane_tile();
        let words = comptime!(left_words(&config.contract, config.tile));
        let first =
            buffers.args[comptime!(config.shared().left)] + tile * share.count * words + UNIT_POS;
        let own = first + share.number * words;
        #[unroll]
        for i in 0..sums_of_unit {
            put(buffers.arena, own + comptime!(i as u32 * UNITS), sums[i]);
        }
        last = is_last(counters, tile, share.count);
        if last {
            add_up(buffers, sums, first, share.count, sums_of_unit, words);
            reset(counters, tile);
        }
    }
    last
}

/// The sums of all `count` cubes of a tile.
#[cube]
fn add_up(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    first: u32,
    count: u32,
    #[comptime] sums_of_unit: usize,
    #[comptime] words: u32,
) {
    #[unroll]
    for i in 0..sums_of_unit {
        sums[i] = buffers.arena[(first + comptime!(i as u32 * UNITS)) as usize];
    }
    for number in 1..count {
        let from = first + number * words;
        #[unroll]
        for i in 0..sums_of_unit {
            sums[i] += buffers.arena[(from + comptime!(i as u32 * UNITS)) as usize];
        }
    }
}

impl MatrixConfig {
    /// The scalars of shares, which kernels without do not ask for.
    fn shared(&self) -> DepthShares {
        self.shares.expect("shares of the depth")
    }

    /// Steps of the depth.
    fn steps(&self) -> u32 {
        self.contract.k.div_ceil(DEPTH)
    }

    /// First scalar of the last unit.
    fn last_unit(&self) -> usize {
        self.contract.units.last().map_or(0, |unit| unit.arg)
    }
}

/// Words that a cube leaves of a tile.
pub fn left_words(contract: &ContractConfig, tile: MatrixTile) -> u32 {
    contract.most_parts() as u32 * tile.rows * tile.lanes
}
