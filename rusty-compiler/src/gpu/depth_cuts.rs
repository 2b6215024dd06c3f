//! Among how many cubes the depth of products on matrix units is [shared](super::kernels::depth_shares): as many as make a device busy
//! that has few tiles.

use super::kernels::contract::ContractConfig;
use super::kernels::depth_shares::left_words;
use super::kernels::matrix::DEPTH;
use super::kernels::matrix_product::MatrixTile;

/// Cubes that keep a device busy, a guess: large ones have about half as many processors.
const CUBES: u32 = 256;
/// Steps of the depth that a cube makes at least, of large tiles and of others: what the cubes of a tile leave grows with it, and is to be
/// little beside what they read.
const LEAST_STEPS: [u32; 2] = [64, 4];
/// Cubes of a tile at most: the last one adds up what they leave.
const MOST: u32 = 16;

/// What a launch's share of the depth depends on, beside the rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DepthCut {
    /// The scalar that says how many cubes share a tile.
    pub arg: usize,
    /// Tiles of the same rows.
    pub tiles: u32,
    /// Rows of a tile.
    pub rows: u32,
    /// Steps of the depth.
    pub steps: u32,
    /// Words that a cube leaves.
    pub words: u32,
}

impl DepthCut {
    /// That of a contraction of so many `tiles`; its scalar is yet to be made.
    pub fn of(contract: &ContractConfig, tile: MatrixTile, tiles: u32) -> Self {
        Self {
            arg: 0,
            tiles,
            rows: tile.rows,
            steps: contract.k.div_ceil(DEPTH),
            words: left_words(contract, tile),
        }
    }

    /// Whether tiles are shared in any step that has them. What cubes of large tiles leave takes registers, of which several units'
    /// kernels have none to spare.
    pub fn shares(&self, units: usize) -> bool {
        self.count(self.rows, u32::MAX) > 1 && (self.rows <= 64 || units == 1)
    }

    /// Cubes of a tile in a step of so many `rows`, which leave at most `room` words: a kernel that tuning took may want more than those
    /// before it.
    pub fn count(&self, rows: u32, room: u32) -> u32 {
        let tiles = (self.tiles * rows.div_ceil(self.rows)).max(1);
        let least = LEAST_STEPS[usize::from(self.rows <= 64)];
        let fit = room / tiles.saturating_mul(self.words).max(1);
        let count = (CUBES / tiles).min(self.steps / least).min(MOST);
        count.min(fit).max(1)
    }

    /// Words that a launch's cubes leave, at most.
    pub fn left_words(&self) -> u32 {
        CUBES * self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn few_tiles_are_shared_and_many_are_not() {
        let cut = |tiles, rows, steps| DepthCut {
            arg: 0,
            tiles,
            rows,
            steps,
            words: rows * 64,
        };
        assert_eq!(cut(16, 64, 64).count(16, u32::MAX), 16);
        assert_eq!(cut(16, 64, 32).count(64, u32::MAX), 8);
        assert_eq!(cut(16, 64, 64).count(512, u32::MAX), 2);
        assert_eq!(cut(32, 128, 127).count(512, u32::MAX), 1);
        assert_eq!(cut(32, 128, 128).count(512, u32::MAX), 2);
        assert_eq!(cut(2000, 64, 32).count(64, u32::MAX), 1);
    }

    proptest! {
        /// What cubes leave has room, and each tile a counter.
        #[test]
        fn shares_have_room(
            tiles in 1u32..3000,
            large in proptest::bool::ANY,
            steps in 1u32..500,
            rows in 1u32..2000,
            scarce in proptest::bool::ANY,
        ) {
            let of = if large { 128 } else { 64 };
            let cut = DepthCut { arg: 0, tiles, rows: of, steps, words: of * 64 };
            let room = if scarce { cut.words * 7 } else { cut.left_words() };
            let count = cut.count(rows, room);
            let all = tiles * rows.div_ceil(of);
            prop_assert!((1..=MOST).contains(&count));
            prop_assert!(count == 1 || all * count * cut.words <= room);
            prop_assert!(count == 1 || all <= crate::gpu::attention::SPLIT_CUBES);
        }
    }
}
