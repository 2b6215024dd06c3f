//! Products with experts for many rows (a grouped gemm): a cube takes the lanes of one tile of one expert and the rows that
//! take it, whose numbers it gathers from the routes, a tile's at a time. So each weight is
//! read and dequantized once for a tile's rows, and an expert that no row takes is not read. Tiles are multiplied here, in single
//! precision, or [on matrix units](super::grouped_matrix).
//!
//! A row's products lie in the order of its places, and [what becomes of them](super::expert_results) adds them in that order: among
//! steps that run this kernel, a result does not depend on the rows beside it. Limits: one part of a kernel a launch; barriers lie in loops whose length comes from shared
//! memory; it is the same for all units of a cube, which strict analyses of uniformity (DX12's older compiler) may not see.

use super::contract::tile_number;
use super::env::{Buffers, bound, put};
use super::experts::{ExpertsConfig, scalar};
use super::fragments::ALIGNMENT;
use super::grouped_matrix::matrix_tile;
use super::matrix::MatrixConfig;
use super::tile::{
    QUAD, Quad, SIDE, TileShape, UNITS, WeightRows, load_weights, multiply, own_lane, own_row,
};
use cubecl::prelude::*;
use rusty_loader::Format;

/// What the kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupedConfig {
    /// Which products.
    pub experts: ExpertsConfig,
    /// How those of the launch's part, which is the first of its scalars, are made.
    pub tiles: Tiles,
}

/// What multiplies tiles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Tiles {
    /// Every unit, in single precision: the format of all experts of the part, and the stored bytes of a row of one.
    Single { format: Format, row_bytes: u32 },
    /// Matrix units: the product with one expert.
    Matrix(Box<MatrixConfig>),
}

impl GroupedConfig {
    /// Rows of a tile.
    pub fn rows(&self) -> u32 {
        match &self.tiles {
            Tiles::Single { .. } => TILE.rows,
            Tiles::Matrix(config) => config.tile.rows,
        }
    }

    /// Lanes of a tile.
    pub fn lanes(&self) -> u32 {
        match &self.tiles {
            Tiles::Single { .. } => TILE.lanes,
            Tiles::Matrix(config) => config.tile.lanes,
        }
    }

    /// Most products that are gathered at once: what is left of a tile, and one row of each unit.
    fn gathered(&self) -> usize {
        (self.rows() + UNITS) as usize
    }

    /// Quads of inputs and of weights, and words of both on matrix units and of what stands for those; what is not used is one.
    fn tile_sizes(&self) -> [usize; 4] {
        match &self.tiles {
            Tiles::Single { .. } => {
                let stride = TILE.stride();
                let [inputs, weights] = [TILE.rows, TILE.lanes].map(|n| (n * stride) as usize);
                [inputs, weights, 1, 1]
            }
            Tiles::Matrix(config) => [1, 1, config.tile_words(), config.exchange_words()],
        }
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        let [inputs, weights, words, exchange] = self.tile_sizes();
        let words = (inputs + weights) * QUAD as usize + words + exchange;
        4 * (words + self.gathered() + UNITS as usize) as u32
    }
}

/// The tile in single precision: all units have sums of their own.
const TILE: TileShape = TileShape::MIDDLE;
/// Elements of a row in shared memory at once, and from one row there to the next in quads.
const DEPTH: u32 = TILE.depth();
const STRIDE: u32 = TILE.stride();

/// Shared memory of a cube.
#[derive(CubeType)]
pub struct GroupedMemory {
    /// Inputs and weights in single precision.
    inputs: Shared<[Quad]>,
    weights: Shared<[Quad]>,
    /// Both on matrix units, and what stands for those exchanges.
    pub tiles: Shared<[u32]>,
    pub exchange: Shared<[u32]>,
    /// Gathered products.
    pub products: Shared<[u32]>,
    /// Products of each unit.
    counts: Shared<[u32]>,
}

#[cube]
impl GroupedMemory {
    fn new(#[comptime] config: GroupedConfig) -> Self {
        let [inputs, weights, tiles, exchange] = comptime!(config.tile_sizes());
        GroupedMemory {
            inputs: Shared::<[Quad]>::new_slice(inputs),
            weights: Shared::<[Quad]>::new_slice(weights),
            tiles: Shared::<[u32]>::new_aligned_slice(tiles, ALIGNMENT),
            exchange: Shared::<[u32]>::new_slice(exchange),
            products: Shared::<[u32]>::new_slice(comptime!(config.gathered())),
            counts: Shared::<[u32]>::new_slice(comptime!(UNITS as usize)),
        }
    }
}

/// Cubes: `(x * y >= tiles, z = experts)`.
#[cube(launch_unchecked)]
pub fn grouped(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: GroupedConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let memory = GroupedMemory::new(comptime!(config.clone()));
    let rows = buffers.step[comptime!(config.experts.rows)];
    let tile_rows = comptime!(config.rows());
    let lane = buffers.args[scalar::FIRST] + tile_number() * comptime!(config.lanes());
    if lane < buffers.args[scalar::END] {
        let mut row = 0u32;
        let mut have = 0u32;
        while row < rows || have > 0 {
            while row < rows && have < tile_rows {
                have += gather(
                    &buffers,
                    &memory,
                    row,
                    rows,
                    have,
                    comptime!(config.experts),
                );
                row += UNITS;
            }
            if have > 0 {
                let count = min(have, tile_rows);
                match comptime!(config.tiles.clone()) {
                    Tiles::Single { format, row_bytes } => {
                        let rows = comptime!(WeightRows {
                            format,
                            row_bytes,
                            k: config.experts.k,
                        });
                        tile(
                            &buffers,
                            &memory,
                            count,
                            lane,
                            rows,
                            comptime!(config.experts),
                        );
                    }
                    Tiles::Matrix(product) => {
                        let experts = comptime!(config.experts);
                        let product = comptime!(*product);
                        matrix_tile(&buffers, &memory, count, lane, product, experts);
                    }
                }
                have -= count;
                drop_first(&memory.products, tile_rows, have);
            }
        }
    }
}

/// Appends the products of this cube's expert among [`UNITS`] rows from `row` on, and returns how many they are.
#[cube]
fn gather(
    buffers: &Buffers<'_>,
    memory: &GroupedMemory,
    row: u32,
    rows: u32,
    have: u32,
    #[comptime] config: ExpertsConfig,
) -> u32 {
    let (products, counts) = (&memory.products, &memory.counts);
    let own = row + UNIT_POS;
    let mut taken = 0u32;
    let mut place = CUBE_POS_Z;
    if own < rows {
        if comptime!(config.routed) {
            let routes = buffers.args[scalar::ROUTES] + own * comptime!(2 * config.used);
            for j in 0..comptime!(config.used) {
                if u32::cast_from(buffers.arena[(routes + j) as usize]) == CUBE_POS_Z {
                    place = j;
                    taken = 1u32;
                }
            }
        } else {
            taken = 1u32;
        }
    }
    put(counts, UNIT_POS, taken);
    sync_cube();
    // A running sum, in steps of doubled distance.
    #[unroll]
    for step in 0..comptime!(UNITS.ilog2()) {
        let distance = comptime!(1u32 << step);
        let mut sum = counts[UNIT_POS as usize];
        if UNIT_POS >= distance {
            sum += counts[(UNIT_POS - distance) as usize];
        }
        sync_cube();
        put(counts, UNIT_POS, sum);
        sync_cube();
    }
    if taken > 0 {
        let at = have + counts[UNIT_POS as usize] - 1;
        put(products, at, own * comptime!(config.used) + place);
    }
    let all = counts[comptime!((UNITS - 1) as usize)];
    sync_cube();
    all
}

/// Moves the `left` products behind the first `rows` to the front.
#[cube]
fn drop_first(products: &Shared<[u32]>, #[comptime] rows: u32, left: u32) {
    let moved = products[(UNIT_POS + rows) as usize];
    sync_cube();
    if UNIT_POS < left {
        put(products, UNIT_POS, moved);
    }
    sync_cube();
}

/// The first `count` gathered products, lanes from `lane` on.
#[cube]
fn tile(
    buffers: &Buffers<'_>,
    memory: &GroupedMemory,
    count: u32,
    lane: u32,
    #[comptime] rows: WeightRows,
    #[comptime] config: ExpertsConfig,
) {
    let first = buffers.args[scalar::FIRST];
    let end = buffers.args[scalar::END];
    let expert = expert_start(buffers);
    let mut sums = Array::<f32>::new(comptime!(SIDE * SIDE));
    let mut depth = 0u32;
    while depth < config.k {
        load_inputs(buffers, memory, count, depth, config);
        load_weights::<f32>(
            buffers,
            &memory.weights,
            expert + (lane - first) * comptime!(rows.row_bytes),
            end - lane,
            depth,
            rows,
            TILE,
        );
        sync_cube();
        multiply::<f32>(&memory.inputs, &memory.weights, &mut sums, 0usize, TILE);
        sync_cube();
        depth += DEPTH;
    }
    #[unroll]
    for i in 0..comptime!(SIDE * SIDE) {
        let m = own_row(comptime!(i / SIDE), TILE);
        let l = lane + own_lane(comptime!(i % SIDE), TILE);
        if m < count && l < end {
            let at = product_lanes(buffers, memory.products[m as usize], config) + l;
            put(buffers.arena, at, sums[i]);
        }
    }
}

/// The byte at which this cube's expert has its row of the launch's first lane.
#[cube]
pub fn expert_start(buffers: &Buffers<'_>) -> u32 {
    let stride = buffers.args[comptime!(scalar::stride(0))];
    buffers.args[comptime!(scalar::rows(0))] + CUBE_POS_Z * stride
}

/// The arena word at which a gathered product has its lanes.
#[cube]
pub fn product_lanes(
    buffers: &Buffers<'_>,
    product: u32,
    #[comptime] config: ExpertsConfig,
) -> u32 {
    let (used, n) = comptime!((config.used, config.n));
    let row = product / used * comptime!(config.row_lanes());
    buffers.args[scalar::OUT] + row + product % used * n
}

/// The arena word at which a gathered product has its input.
#[cube]
pub fn product_input(
    buffers: &Buffers<'_>,
    product: u32,
    #[comptime] config: ExpertsConfig,
) -> u32 {
    let input = match comptime!(config.inputs_per_row() > 1) {
        true => product,
        false => product / comptime!(config.used),
    };
    buffers.args[scalar::X] + input * config.k
}

/// Input tile, `[product][quad]`; zero past the row's end.
#[cube]
fn load_inputs(
    buffers: &Buffers<'_>,
    memory: &GroupedMemory,
    count: u32,
    depth: u32,
    #[comptime] config: ExpertsConfig,
) {
    for i in 0..comptime!(TILE.rows * DEPTH / QUAD / UNITS) {
        let element = UNIT_POS + i * UNITS;
        let q = element % comptime!(DEPTH / QUAD);
        let m = element / comptime!(DEPTH / QUAD);
        let lane = depth + q * QUAD;
        let row = product_input(buffers, memory.products[min(m, count - 1) as usize], config);
        let mut quad = Quad::empty();
        #[unroll]
        for i in 0..comptime!(QUAD as usize) {
            let mut value = 0.0f32;
            if lane + (i as u32) < config.k {
                value = buffers.arena[(row + lane + i as u32) as usize];
            }
            quad.insert(i, value);
        }
        put(&memory.inputs, m * STRIDE + q, quad);
    }
}
