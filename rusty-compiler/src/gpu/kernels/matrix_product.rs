//! A product of two tiles in shared memory on matrix units: how planes share it, and how units give their sums back.

use super::env::put;
use super::fragments::{Halves, PLANE, multiply_add};
use cubecl::prelude::*;

/// Units of a cube.
pub const UNITS: u32 = 128;
/// Rows of a plane of units: two fragments.
pub const PLANE_ROWS: u32 = 32;
/// A tile of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixTile {
    /// Rows: 32 or 64.
    pub rows: u32,
    /// Lanes: a multiple of 8 times the planes side by side.
    pub lanes: u32,
}

impl MatrixTile {
    /// Planes of units side by side.
    pub fn across(&self) -> u32 {
        UNITS / PLANE / (self.rows / PLANE_ROWS)
    }

    /// Lanes of a plane.
    pub fn plane_lanes(&self) -> u32 {
        self.lanes / self.across()
    }

    /// Fragments side by side of a plane.
    pub fn fragments(&self) -> usize {
        (self.plane_lanes() / 8) as usize
    }
}

/// A product of two tiles in shared memory, rows of words that hold two elements each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// The result: rows of the left tile by rows of the right one.
    pub tile: MatrixTile,
    /// First row of the left tile, and words from row to row.
    pub left: (u32, u32),
    /// The same of the right tile.
    pub right: (u32, u32),
    /// Elements of a row, a multiple of 16.
    pub depth: u32,
    /// First of the sums that the products are added to.
    pub at: usize,
    /// What the elements are.
    pub halves: Halves,
}

/// Adds a product to the units' sums, `[fragment below][fragment beside][4]`. All units of the cube call it together.
#[cube]
pub fn multiply(
    left_tile: &Shared<[u32]>,
    right_tile: &Shared<[u32]>,
    exchange: &Shared<[u32]>,
    sums: &mut Array<f32>,
    #[comptime] product: Product,
) {
    let tile = comptime!(product.tile);
    let (left_first, left_stride) = comptime!(product.left);
    let (right_first, right_stride) = comptime!(product.right);
    let (group, inner) = (UNIT_POS % PLANE / 4, UNIT_POS % 4);
    let plane = UNIT_POS / PLANE;
    let row = left_first + plane / tile.across() * PLANE_ROWS + group;
    let lane = right_first + plane % tile.across() * tile.plane_lanes() + group;
    let fragments = comptime!(tile.fragments());
    #[unroll]
    for step in 0..comptime!(product.depth / 16) {
        let word = comptime!(step * 8) + inner;
        let mut left = Array::<u32>::new(8usize);
        #[unroll]
        for i in 0..8usize {
            // Two fragments, of each: row, row + 8, both 8 elements further.
            let at = row + comptime!(i as u32 / 4 * 16 + i as u32 % 2 * 8);
            left[i] =
                left_tile[(at * left_stride + word + comptime!(i as u32 % 4 / 2 * 4)) as usize];
        }
        let mut right = Array::<u32>::new(comptime!(fragments * 2));
        #[unroll]
        for n in 0..fragments {
            let at = (lane + comptime!(n as u32 * 8)) * right_stride + word;
            right[comptime!(n * 2)] = right_tile[at as usize];
            right[comptime!(n * 2 + 1)] = right_tile[(at + 4) as usize];
        }
        multiply_add(
            &left,
            &right,
            sums,
            exchange,
            fragments,
            comptime!(product.at),
            comptime!(product.halves),
        );
    }
}

/// The sums of quarter `q`, `[part][row][lane]`: of each plane's rows eight.
#[cube]
pub fn keep_quarter(
    products: &Shared<[u32]>,
    sums: &Array<f32>,
    q: u32,
    #[comptime] parts: usize,
    #[comptime] tile: MatrixTile,
) {
    let fragments = comptime!(tile.fragments());
    let plane = UNIT_POS / PLANE;
    let row = plane / tile.across() * 8 + UNIT_POS % PLANE / 4;
    let lane = plane % tile.across() * tile.plane_lanes() + UNIT_POS % 4 * 2;
    #[unroll]
    for own in 0..4usize {
        if q == own as u32 {
            let (m, half) = comptime!((own / 2, own % 2));
            #[unroll]
            for i in 0..comptime!(parts * fragments * 2) {
                let (p, n, side) = comptime!((i / fragments / 2, i / 2 % fragments, i % 2));
                let at = (comptime!(p as u32 * tile.rows / 4) + row) * tile.lanes
                    + lane
                    + comptime!((n * 8 + side) as u32);
                let sum = sums[comptime!(((p * 2 + m) * fragments + n) * 4 + half * 2 + side)];
                put(products, at, u32::reinterpret(sum));
            }
        }
    }
}
