//! A product of two tiles in shared memory on matrix units: how planes share it, and how units give their sums back.

use super::env::put;
use super::fragments::{Halves, PLANE, load_matrices, multiply_add};
use cubecl::prelude::*;

/// Units of a cube.
pub const UNITS: u32 = 128;
/// A tile of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixTile {
    /// Rows: so many planes' that the planes are a multiple of them.
    pub rows: u32,
    /// Lanes: a multiple of 8 times the planes side by side.
    pub lanes: u32,
    /// Fragments of a plane below each other.
    pub below: usize,
}

impl MatrixTile {
    /// A tile of products, of `rows` rows by at most `lanes` lanes of `parts` parts: of the largest, planes hold as many sums of several
    /// parts as of one.
    pub fn of_products(rows: u32, lanes: u32, parts: u32) -> Self {
        Self {
            rows,
            lanes: if parts > 1 { lanes.min(64) } else { lanes },
            below: if rows > 64 { 4 } else { 2 },
        }
    }

    /// Rows of a plane.
    pub fn plane_rows(&self) -> u32 {
        self.below as u32 * 16
    }

    /// Planes of units side by side.
    pub fn across(&self) -> u32 {
        UNITS / PLANE / (self.rows / self.plane_rows())
    }

    /// Sums of a unit.
    pub fn sums(&self) -> usize {
        self.below * self.fragments() * 4
    }

    /// Halves of fragments below each other: the rows of each plane are given back by eights.
    pub fn eights(&self) -> u32 {
        2 * self.below as u32
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
    /// First row of the left tile, and words from row to row, a multiple of four.
    pub left: (u32, u32),
    /// The same of the right tile.
    pub right: (u32, u32),
    /// Whether the right tile is turned: its rows are the depth, pairs of lanes side by side.
    pub turned: bool,
    /// Elements of a row, a multiple of 16.
    pub depth: u32,
    /// First of the sums that the products are added to.
    pub at: usize,
    /// What the elements are.
    pub halves: Halves,
}

/// Adds a product to the units' sums, `[fragment below][fragment beside][4]`; both tiles lie `first` rows further. All units of the cube
/// call it together.
#[cube]
pub fn multiply(
    left_tile: &Shared<[u32]>,
    right_tile: &Shared<[u32]>,
    exchange: &Shared<[u32]>,
    sums: &mut Array<f32>,
    first: u32,
    #[comptime] product: Product,
) {
    let tile = comptime!(product.tile);
    let plane = UNIT_POS / PLANE;
    let row = first + plane / tile.across() * tile.plane_rows();
    let lane = first + plane % tile.across() * tile.plane_lanes();
    #[unroll]
    for step in 0..comptime!(product.depth / 16) {
        let mut left = Array::<u32>::new(comptime!(tile.below * 4));
        load_left(left_tile, &mut left, row, step, product);
        multiply_step(&left, right_tile, exchange, sums, lane, step, product);
    }
}

/// Adds the products of the fragments `left`, 16 elements of a depth that begin at the right tile's `step`-th, with those of the
/// right tile from the plane's `lane` on.
#[cube]
pub fn multiply_step(
    left: &Array<u32>,
    right_tile: &Shared<[u32]>,
    exchange: &Shared<[u32]>,
    sums: &mut Array<f32>,
    lane: u32,
    #[comptime] step: u32,
    #[comptime] product: Product,
) {
    let fragments = comptime!(product.tile.fragments());
    let mut right = Array::<u32>::new(comptime!(fragments * 2));
    load_right(right_tile, &mut right, lane, step, product);
    multiply_add(
        left,
        &right,
        sums,
        exchange,
        comptime!((product.tile.below, fragments)),
        comptime!(product.at),
        comptime!(product.halves),
    );
}

/// Fragments below each other, from `row` and step `step` of the depth on: of each a unit has words of a row, of that eight rows
/// below, then both eight elements further.
#[cube]
pub fn load_left(
    tile: &Shared<[u32]>,
    left: &mut Array<u32>,
    row: u32,
    #[comptime] step: u32,
    #[comptime] product: Product,
) {
    let stride = comptime!(product.left.1);
    let unit = UNIT_POS % PLANE;
    #[unroll]
    for f in 0..comptime!(product.tile.below as u32) {
        let first = (row + comptime!(product.left.0 + f * 16)) * stride + comptime!(step * 8);
        if comptime!(product.halves.native) {
            let four = load_matrices(tile, first + left_start(unit / 8, unit % 8, stride), false);
            #[unroll]
            for i in 0..4usize {
                left[comptime!(f as usize * 4 + i)] = four.extract(i);
            }
        } else {
            #[unroll]
            for i in 0..4u32 {
                let at = first + left_start(i.runtime(), unit / 4, stride) + unit % 4;
                left[comptime!((f * 4 + i) as usize)] = tile[at as usize];
            }
        }
    }
}

/// Where a row of one of the four matrices of a left fragment starts.
#[cube]
fn left_start(matrix: u32, row: u32, #[comptime] stride: u32) -> u32 {
    (row + matrix % 2 * 8) * stride + matrix / 2 * 4
}

/// Fragments side by side from `lane` and step `step` of the depth on: of each a unit has two elements of a lane, then those eight
/// further.
#[cube]
fn load_right(
    tile: &Shared<[u32]>,
    right: &mut Array<u32>,
    lane: u32,
    #[comptime] step: u32,
    #[comptime] product: Product,
) {
    let stride = comptime!(product.right.1);
    let unit = UNIT_POS % PLANE;
    let fragments = comptime!(product.tile.fragments());
    // Two at a time.
    #[unroll]
    for pair in 0..comptime!(fragments.div_ceil(2)) {
        let first = right_start(lane, comptime!(pair as u32 * 16), step, product);
        if comptime!(product.halves.native && pair * 2 + 1 < fragments) {
            let (matrix, row) = (unit / 8, unit % 8);
            let own = if comptime!(product.turned) {
                left_start(matrix, row, stride)
            } else {
                (row + matrix / 2 * 8) * stride + matrix % 2 * 4
            };
            let four = load_matrices(tile, first + own, comptime!(product.turned));
            #[unroll]
            for i in 0..4usize {
                right[comptime!(pair * 4 + i)] = four.extract(i);
            }
        } else {
            #[unroll]
            for i in 0..comptime!((fragments - pair * 2).min(2) as u32 * 2) {
                let column = comptime!(i / 2 * 8) + unit / 4;
                right[comptime!(pair * 4 + i as usize)] = if comptime!(product.turned) {
                    let row = unit % 4 * 2 + comptime!(i % 2 * 8);
                    halves_below(tile, first + row * stride + column / 2, column % 2, stride)
                } else {
                    tile[(first + column * stride + comptime!(i % 2 * 4) + unit % 4) as usize]
                };
            }
        }
    }
}

/// Where what fragments have from `behind` lanes behind `lane` and a step on starts in the right tile.
#[cube]
fn right_start(
    lane: u32,
    #[comptime] behind: u32,
    #[comptime] step: u32,
    #[comptime] product: Product,
) -> u32 {
    let (first, stride) = comptime!(product.right);
    if comptime!(product.turned) {
        lane / 2 + comptime!((first + step * 16) * stride + behind / 2)
    } else {
        (lane + comptime!(first + behind)) * stride + comptime!(step * 8)
    }
}

/// Of the word at `at` and that a row below the low halves, or the high ones (`side`), one word.
#[cube]
fn halves_below(tile: &Shared<[u32]>, at: u32, side: u32, #[comptime] stride: u32) -> u32 {
    let (upper, lower) = (tile[at as usize], tile[(at + stride) as usize]);
    if side == 0 {
        (upper & 0xffff) | (lower << 16)
    } else {
        (upper >> 16) | (lower & 0xffff_0000)
    }
}

/// The tile's row that is row `m` of those that [`keep_eights()`] keeps.
#[cube]
pub fn kept_row(m: u32, eight: u32, #[comptime] tile: MatrixTile) -> u32 {
    m / 8 * tile.plane_rows() + eight * 8 + m % 8
}

/// Of each plane's rows the eight of number `eight`: their sums, `[part][row][lane]`.
#[cube]
pub fn keep_eights(
    products: &Shared<[u32]>,
    sums: &Array<f32>,
    eight: u32,
    #[comptime] parts: usize,
    #[comptime] tile: MatrixTile,
) {
    let (below, fragments) = comptime!((tile.below, tile.fragments()));
    let plane = UNIT_POS / PLANE;
    let row = plane / tile.across() * 8 + UNIT_POS % PLANE / 4;
    let lane = plane % tile.across() * tile.plane_lanes() + UNIT_POS % 4 * 2;
    #[unroll]
    for own in 0..comptime!(tile.eights() as usize) {
        if eight == own as u32 {
            let (m, half) = comptime!((own / 2, own % 2));
            #[unroll]
            for i in 0..comptime!(parts * fragments * 2) {
                let (p, n, side) = comptime!((i / fragments / 2, i / 2 % fragments, i % 2));
                let at = (comptime!(p as u32 * tile.rows / tile.eights()) + row) * tile.lanes
                    + lane
                    + comptime!((n * 8 + side) as u32);
                let sum = sums[comptime!(((p * below + m) * fragments + n) * 4 + half * 2 + side)];
                put(products, at, u32::reinterpret(sum));
            }
        }
    }
}
