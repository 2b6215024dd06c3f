//! Tiles of the kernels for many rows in single precision: input rows by lanes, multiplied some elements at a time out of shared
//! memory. Each weight is dequantized once per tile.
//!
//! Elements lie in shared memory by fours, neighbours of a row, so that a unit reads four at once: for four rows and four lanes
//! eight reads serve 64 products, for eight rows twelve serve 128. A unit's rows and lanes lie apart, so that those of neighbouring
//! units lie side by side.
//!
//! Of a [small](TileShape::SMALL) tile that would be work for a quarter of the units. So its weights' rows are held deeper, and units
//! in [slices](TileShape::slices) share the depth, whose sums are added at the end.

use super::decode::{RUN, decode_run};
use super::env::{Buffers, put};
use cubecl::prelude::*;
use rusty_loader::Format;

/// Units of a cube: one run of the weight tile each.
pub const UNITS: u32 = 128;
/// Lanes of a unit, and its rows at least.
pub const SIDE: usize = 4;
/// Rows of a unit whose products are finished together.
pub const FINISHED: usize = 2;
/// Elements that are read at once.
pub const QUAD: u32 = 4;

/// How large a tile is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileShape {
    /// Input rows.
    pub rows: u32,
    /// Lanes.
    pub lanes: u32,
}

impl TileShape {
    /// For few rows, most of which a larger one would not have, and twice as many cubes.
    pub const SMALL: Self = Self {
        rows: 16,
        lanes: 32,
    };
    /// For many rows: it dequantizes weights half as often.
    pub const MIDDLE: Self = Self {
        rows: 32,
        lanes: 64,
    };
    /// For more rows still, half as often again, and three quarters of the reads of shared memory for each product.
    pub const TALL: Self = Self {
        rows: 64,
        lanes: 64,
    };

    /// Elements of a row in shared memory at once.
    pub const fn depth(self) -> u32 {
        UNITS * RUN as u32 / self.lanes
    }

    /// The same in quads.
    pub const fn quads(self) -> u32 {
        self.depth() / QUAD
    }

    /// Quads from one row of shared memory to the next: one more than it has, so that rows fall into different banks.
    pub const fn stride(self) -> u32 {
        self.quads() + 1
    }

    /// Units along the lanes, and so the distance of a unit's lanes.
    pub const fn across(self) -> u32 {
        self.lanes / SIDE as u32
    }

    /// Rows of a unit.
    pub const fn side(self) -> usize {
        let shared = (self.rows * self.across() / UNITS) as usize;
        if shared > SIDE { shared } else { SIDE }
    }

    /// Units along the rows, and so the distance of a unit's rows.
    pub const fn down(self) -> u32 {
        self.rows / self.side() as u32
    }

    /// Times that [`FINISHED`] of each unit's rows are finished, and the tile's rows of each time, which lie together.
    pub const fn portions(self) -> (u32, u32) {
        let portions = (self.side() / FINISHED) as u32;
        (portions, self.rows / portions)
    }

    /// Units that have the same rows and lanes, each some of the depth.
    pub const fn slices(self) -> u32 {
        UNITS / (self.across() * self.down())
    }

    /// Floats of the products of so many parts, in all slices, of the rows that are finished together.
    pub const fn product_floats(self, parts: usize) -> usize {
        parts * UNITS as usize * FINISHED * SIDE
    }

    /// Bytes of shared memory with weights of so many bytes and products of so many parts.
    pub const fn shared_bytes(self, of_weight: usize, parts: usize) -> u32 {
        let quads = QUAD as usize * self.stride() as usize;
        let inputs = 4 * quads * self.rows as usize;
        let weights = of_weight * quads * self.lanes as usize;
        let norms = 4 * self.rows as usize;
        (inputs + weights + norms + 4 * self.product_floats(parts)) as u32
    }
}

/// Neighbouring elements of a row.
pub type Quad = Vector<f32, Const<4>>;

/// How the rows of a matrix lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightRows {
    /// Stored format.
    pub format: Format,
    /// Stored bytes of a row.
    pub row_bytes: u32,
    /// Elements of a row.
    pub k: u32,
}

/// Weight tile, `[lane][quad]`, of the `lanes` rows (or as many of the first as it has) from byte `start` on: each unit
/// decodes one run. Zero past the rows' end; lanes behind the last repeat it.
#[cube]
pub fn load_weights<W: Scalar>(
    buffers: &Buffers<'_>,
    w_tile: &Shared<[Vector<W, Const<4>>]>,
    start: u32,
    lanes: u32,
    depth: u32,
    #[comptime] rows: WeightRows,
    #[comptime] shape: TileShape,
) {
    let local = UNIT_POS % shape.lanes;
    let piece = UNIT_POS / shape.lanes;
    let run = depth / RUN as u32 + piece;
    let mut w = Array::<f32>::new(RUN);
    if run < comptime!(rows.k.div_ceil(RUN as u32)) {
        decode_run(
            buffers,
            start + min(local, lanes - 1) * comptime!(rows.row_bytes),
            run,
            &mut w,
            comptime!(rows.format),
            comptime!(rows.k),
        );
    }
    let to = local * comptime!(shape.stride()) + piece * comptime!(RUN as u32 / QUAD);
    #[unroll]
    for q in 0..comptime!(RUN / QUAD as usize) {
        let mut quad = Quad::empty();
        #[unroll]
        for i in 0..comptime!(QUAD as usize) {
            quad.insert(i, w[comptime!(q * QUAD as usize + i)]);
        }
        put(
            w_tile,
            to + q as u32,
            Vector::<W, Const<4>>::cast_from(quad),
        );
    }
}

/// The unit's lane `l` of a tile.
#[cube]
pub fn own_lane(#[comptime] l: usize, #[comptime] shape: TileShape) -> u32 {
    UNIT_POS % comptime!(shape.across()) + comptime!(l as u32 * shape.across())
}

/// The unit's row `m` of a tile.
#[cube]
pub fn own_row(#[comptime] m: usize, #[comptime] shape: TileShape) -> u32 {
    let row = UNIT_POS / comptime!(shape.across());
    let own = if comptime!(shape.slices() == 1) {
        row
    } else {
        row % comptime!(shape.down())
    };
    own + comptime!(m as u32 * shape.down())
}

/// The unit's slice of the depth.
#[cube]
pub fn own_slice(#[comptime] shape: TileShape) -> u32 {
    if comptime!(shape.slices() == 1) {
        0u32.runtime()
    } else {
        UNIT_POS / comptime!(shape.across() * shape.down())
    }
}

/// Adds the unit's share of the product of the tiles to its sums, `[row][lane]` from `start`.
#[cube]
pub fn multiply<W: Scalar>(
    x_tile: &Shared<[Quad]>,
    w_tile: &Shared<[Vector<W, Const<4>>]>,
    sums: &mut Array<f32>,
    #[comptime] start: usize,
    #[comptime] shape: TileShape,
) {
    let stride = comptime!(shape.stride());
    let slice = own_slice(shape);
    for turn in 0..comptime!(shape.quads() / shape.slices()) {
        let q = turn * comptime!(shape.slices()) + slice;
        let mut x = Array::<Quad>::new(comptime!(shape.side()));
        #[unroll]
        for m in 0..comptime!(shape.side()) {
            x[m] = x_tile[(own_row(m, shape) * stride + q) as usize];
        }
        #[unroll]
        for l in 0..SIDE {
            let w = Quad::cast_from(w_tile[(own_lane(l, shape) * stride + q) as usize]);
            #[unroll]
            for m in 0..comptime!(shape.side()) {
                #[unroll]
                for i in 0..comptime!(QUAD as usize) {
                    sums[comptime!(start + m * SIDE + l)] += x[m].extract(i) * w.extract(i);
                }
            }
        }
    }
}
