//! Contraction for many rows: a cube makes a [tile](super::tile) of rows by lanes of a unit, dequantizing each weight
//! once per tile into shared memory.
//!
//! Where the device has half precision, weights may lie there in it: a tile is smaller, and half as much is read of them. They are
//! then rounded to eleven bits; inputs, products and sums stay single precision, because inputs have any range, and half precision
//! ends at 65504. A trained weight comes nowhere near that; stored as bf16 or single precision it might be what half precision
//! has no bits for, so such weights stay as they are. Whether it is faster is for [tuning](crate::plan::Tuning) to find out.

use super::contract::{ContractConfig, finish_pair, lane_tile, tile_input};
use super::env::{Buffers, bound, put};
use super::norms::{RowShares, tile_norms};
use super::reduce::no_sums;
use super::tile::{
    FINISHED, QUAD, Quad, SIDE, TileShape, UNITS, WeightRows, load_weights, multiply, own_lane,
    own_row, own_slice,
};
use super::unit_lanes::{AlikeUnits, Lanes, lanes_of_tile};
use cubecl::prelude::*;
use half::f16;
use rusty_loader::Format;

/// What a contraction kernel of tiles is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GemmConfig {
    /// The contraction.
    pub contract: ContractConfig,
    /// The tile.
    pub tile: TileShape,
    /// Whether weights lie in shared memory in half precision.
    pub halves: bool,
}

impl GemmConfig {
    /// Whether half precision has room for weights of a format.
    pub fn has_halves(format: Format) -> bool {
        matches!(format, Format::F16 | Format::Blocks(_))
    }

    /// How units share the inputs of a tile: each makes a quad of some rows.
    fn inputs(&self) -> RowShares {
        let quads = self.tile.quads();
        RowShares {
            parts: quads,
            rows: self.tile.rows * quads / UNITS,
            units: UNITS,
        }
    }

    /// Quads of the inputs.
    fn x_quads(&self) -> usize {
        (self.tile.rows * self.tile.stride()) as usize
    }

    /// Quads of the weights.
    fn w_quads(&self) -> usize {
        (self.tile.lanes * self.tile.stride()) as usize
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        let of_weight = if self.halves { 2 } else { 4 };
        self.tile
            .shared_bytes(of_weight, self.contract.most_parts())
    }
}

/// Cubes: `(rows / tile rows, y * z >= tiles)`.
#[cube(launch_unchecked)]
pub fn gemm(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: GemmConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    cube_tile::<f32>(&buffers, config);
}

/// [`gemm()`] whose weights lie in shared memory in half precision.
#[cube(launch_unchecked)]
pub fn gemm_halves(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: GemmConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    cube_tile::<f16>(&buffers, config);
}

/// The cube's tile, in the unit in which it lies.
#[cube]
fn cube_tile<W: Scalar>(buffers: &Buffers<'_>, #[comptime] config: GemmConfig) {
    let count = buffers.step[comptime!(config.contract.rows)];
    let tile = lane_tile();
    let row = CUBE_POS_X * config.tile.rows;
    let x_tile = Shared::<[Quad]>::new_slice(comptime!(config.x_quads()));
    let w_tile = Shared::<[Vector<W, Const<4>>]>::new_slice(comptime!(config.w_quads()));
    let products = Shared::<[f32]>::new_slice(comptime!(
        config.tile.product_floats(config.contract.most_parts())
    ));
    let norms = Shared::<[f32]>::new_slice(comptime!(config.tile.rows as usize));
    if row < count {
        #[unroll]
        for a in 0..comptime!(config.contract.alike().len()) {
            let alike = comptime!(config.contract.alike()[a].clone());
            let (inside, lanes) = lanes_of_tile(
                buffers,
                tile,
                comptime!(config.tile.lanes),
                comptime!(config.contract.clone()),
                alike,
            );
            if inside {
                unit_tile::<W>(
                    buffers,
                    &x_tile,
                    &w_tile,
                    &products,
                    &norms,
                    count,
                    row,
                    &lanes,
                    comptime!(config.clone()),
                    comptime!(config.contract.alike()[a].clone()),
                );
            }
        }
    }
}

#[cube]
fn unit_tile<W: Scalar>(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[Quad]>,
    w_tile: &Shared<[Vector<W, Const<4>>]>,
    products: &Shared<[f32]>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    lanes: &Lanes,
    #[comptime] config: GemmConfig,
    #[comptime] alike: AlikeUnits,
) {
    let parts = comptime!(alike.parts.len());
    let tile = comptime!(config.tile);
    let inputs = comptime!(config.inputs());
    let own_sums = comptime!(tile.side() * SIDE);
    let mut sums = Array::<f32>::new(comptime!(own_sums * parts));
    let mut squares = no_sums(comptime!(inputs.rows as usize));
    let mut depth = 0u32;
    while depth < config.contract.k {
        #[unroll]
        for p in 0..parts {
            load_tiles::<W>(
                buffers,
                x_tile,
                w_tile,
                &mut squares,
                count,
                row,
                lanes,
                depth,
                comptime!(config.clone()),
                comptime!(alike.clone()),
                p,
            );
            sync_cube();
            multiply::<W>(x_tile, w_tile, &mut sums, comptime!(p * own_sums), tile);
            sync_cube();
        }
        depth += comptime!(tile.depth());
    }
    if comptime!(config.contract.prologue.late_norm().is_some()) {
        tile_norms(
            norms,
            products,
            &squares,
            inputs,
            comptime!(config.contract.k),
            comptime!(config.contract.prologue.clone()),
        );
    }
    finish(
        buffers, products, norms, &sums, count, row, lanes, config, alike,
    );
}

/// The tiles of part `p` of a unit; parts share an input that no adapter changes.
#[cube]
fn load_tiles<W: Scalar>(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[Quad]>,
    w_tile: &Shared<[Vector<W, Const<4>>]>,
    squares: &mut Array<f32>,
    count: u32,
    row: u32,
    lanes: &Lanes,
    depth: u32,
    #[comptime] config: GemmConfig,
    #[comptime] alike: AlikeUnits,
    #[comptime] p: usize,
) {
    if comptime!(p == 0 || config.contract.adapters.is_some()) {
        load_inputs(
            buffers,
            x_tile,
            squares,
            count,
            row,
            lanes.parts[p],
            depth,
            comptime!(config.clone()),
            comptime!(p == 0),
        );
    }
    let part = comptime!(alike.parts[p]);
    load_weights::<W>(
        buffers,
        w_tile,
        lanes.rows[p],
        lanes.end - lanes.first,
        depth,
        comptime!(WeightRows {
            format: part.format,
            row_bytes: part.row_bytes,
            k: config.contract.k,
        }),
        comptime!(config.tile),
    );
}

/// Input tile, `[row][quad]`; zero past the row's end. Of the first part `squares` are summed, one for each of the unit's rows.
#[cube]
fn load_inputs(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[Quad]>,
    squares: &mut Array<f32>,
    count: u32,
    row: u32,
    part: u32,
    depth: u32,
    #[comptime] config: GemmConfig,
    #[comptime] is_first: bool,
) {
    let (quads, stride) = comptime!((config.tile.quads(), config.tile.stride()));
    let q = UNIT_POS % quads;
    #[unroll]
    for i in 0..comptime!(config.inputs().rows) {
        let m = UNIT_POS / quads + comptime!(i * (UNITS / quads));
        let at = min(row + m, count - 1);
        let mut quad = Quad::empty();
        #[unroll]
        for j in 0..comptime!(QUAD as usize) {
            let lane = depth + q * QUAD + j as u32;
            let (value, square) =
                tile_input(buffers, at, lane, part, comptime!(config.contract.clone()));
            quad.insert(j, value);
            if comptime!(is_first) {
                squares[i as usize] += square;
            }
        }
        put(x_tile, m * stride + q, quad);
    }
}

/// Products go through shared memory, a portion of the rows at a time, so that units take pairs of lanes in turn and add up the slices.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    memory: &Shared<[f32]>,
    norms: &Shared<[f32]>,
    sums: &Array<f32>,
    count: u32,
    row: u32,
    lanes: &Lanes,
    #[comptime] config: GemmConfig,
    #[comptime] alike: AlikeUnits,
) {
    let parts = comptime!(alike.parts.len());
    let tile = comptime!(config.tile);
    let (portions, rows) = comptime!(tile.portions());
    let pairs = comptime!(tile.lanes / 2);
    for portion in 0..portions {
        keep_portion(memory, sums, portion, parts, tile);
        sync_cube();
        let mut task = UNIT_POS;
        while task < comptime!(rows * pairs) {
            let m = task / pairs;
            let local = task % pairs * 2;
            let at = row + portion * rows + m;
            if at < count && lanes.first + local < lanes.end {
                let mut scale = 1.0f32;
                if comptime!(config.contract.prologue.late_norm().is_some()) {
                    scale = norms[(portion * rows + m) as usize];
                }
                let mut products = Array::<f32>::new(comptime!(parts * 2));
                #[unroll]
                for p in 0..parts {
                    #[unroll]
                    for side in 0..2usize {
                        let at = m * tile.lanes + local + side as u32;
                        let sum = slices_sum(memory, at, comptime!(p as u32), parts, tile);
                        products[comptime!(p * 2 + side)] = sum * scale;
                    }
                }
                finish_pair(
                    buffers,
                    &mut products,
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

/// Part `p` of the product at `at` of a portion, from all slices.
#[cube]
fn slices_sum(
    memory: &Shared<[f32]>,
    at: u32,
    #[comptime] p: u32,
    #[comptime] parts: usize,
    #[comptime] tile: TileShape,
) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for slice in 0..comptime!(tile.slices()) {
        let before = comptime!((slice * parts as u32 + p) * tile.portions().1 * tile.lanes);
        sum += memory[(before + at) as usize];
    }
    sum
}

/// The sums of a portion of the rows, `[slice][part][row][lane]`.
#[cube]
fn keep_portion(
    memory: &Shared<[f32]>,
    sums: &Array<f32>,
    portion: u32,
    #[comptime] parts: usize,
    #[comptime] tile: TileShape,
) {
    let slice = own_slice(tile);
    let (portions, rows) = comptime!(tile.portions());
    #[unroll]
    for own in 0..portions {
        if portion == own {
            #[unroll]
            for i in 0..comptime!(parts * FINISHED * SIDE) {
                let (p, m, l) = comptime!((i / SIDE / FINISHED, i / SIDE % FINISHED, i % SIDE));
                let part = slice * comptime!(parts as u32) + comptime!(p as u32);
                let row = part * comptime!(rows) + own_row(m, tile);
                let at = row * tile.lanes + own_lane(l, tile);
                let from = comptime!(p * tile.side() + own as usize * FINISHED + m);
                put(memory, at, sums[comptime!(from * SIDE + l)]);
            }
        }
    }
}
