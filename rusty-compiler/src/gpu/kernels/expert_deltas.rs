//! Adapters on products with experts, or with the matrices of all heads: what `W x` was stored as becomes `gain_out (W x) +
//! B (scale (A x)) + bias` of each product's own expert and adapter, in place, or as the sum over a row's experts.
//!
//! One launch behind those of the products, whichever they are: a cube makes `A x` of a product in shared memory, `RANKS`
//! ranks at a time, and adds `B u` to [`CUBE_LANES`] lanes. Cubes of other lanes make the same `A x`, which costs less than a
//! launch and a way through memory would. Limits: inputs are not scaled, see [`Site::grouped`](rusty_graph::Site).

use super::contract::lane_tile;
use super::delta::{
    Adapters, FORMAT_BITS, FORMAT_MASK, TABLE_FORMATS, a_value, b_value, entry, entry_of,
};
use super::env::{Buffers, bound, put};
use super::experts::ExpertsConfig;
use super::reduce::no_sums;
use cubecl::prelude::*;

/// Units of a cube.
pub const UNITS: u32 = 128;
/// Lanes of a unit, which lie [`UNITS`] apart.
const LANES: usize = 4;
/// Lanes of a cube.
pub const CUBE_LANES: u32 = UNITS * LANES as u32;
/// Ranks that a cube makes at a time, and the units that share one.
const RANKS: u32 = 16;
const SHARE: u32 = UNITS / RANKS;

/// Scalars of a launch.
pub mod scalar {
    /// Arena word of the products.
    pub const PRODUCTS: usize = 0;
    /// Arena word of the inputs.
    pub const X: usize = 1;
    /// Arena word of the routes.
    pub const ROUTES: usize = 2;
    /// Arena word of the result.
    pub const OUT: usize = 3;
    /// How many they are.
    pub const COUNT: usize = 4;
}

/// What the kernel is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertDeltasConfig {
    /// Which products.
    pub experts: ExpertsConfig,
    /// How many experts there are to choose from.
    pub count: u32,
}

impl ExpertDeltasConfig {
    /// Results of a row: its products, or their sum.
    pub fn results_per_row(&self) -> u32 {
        if self.experts.combine {
            1
        } else {
            self.experts.used
        }
    }

    /// Cubes of a result.
    fn tiles(&self) -> u32 {
        self.experts.n.div_ceil(CUBE_LANES)
    }

    /// Cubes of a row's results.
    pub fn cubes_per_row(&self) -> u32 {
        self.results_per_row() * self.tiles()
    }

    /// Where a product's tables are.
    fn adapters(&self) -> Adapters {
        Adapters {
            parts: self.count,
            // `A x` stays in the cube.
            arg: 0,
            rows: self.experts.rows,
        }
    }
}

/// Shared memory of a cube.
#[derive(CubeType)]
struct Lows {
    /// `[RANKS, SHARE]`.
    partials: Shared<[f32]>,
    /// `scale (A x)` of some ranks.
    ranks: Shared<[f32]>,
}

/// One of a row's products.
#[derive(CubeType)]
struct Product {
    /// Its table entry.
    entry: u32,
    /// Its number among all rows'.
    number: u32,
    /// Arena word of its input.
    x: u32,
}

/// Cubes: `(rows, y * z >= cubes of a row's results)`; the results of all rows may be more than one dimension holds.
#[cube(launch_unchecked)]
pub fn expert_deltas(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: ExpertDeltasConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let lows = Lows {
        partials: Shared::<[f32]>::new_slice(comptime!(UNITS as usize)),
        ranks: Shared::<[f32]>::new_slice(comptime!(RANKS as usize)),
    };
    let experts = comptime!(config.experts);
    let per_row = comptime!(config.results_per_row());
    let tiles = comptime!(config.tiles());
    let row = CUBE_POS_X;
    let result = lane_tile() / tiles;
    let first = lane_tile() % tiles * CUBE_LANES;
    if row < buffers.step[comptime!(experts.rows)] && result < per_row {
        let routes = buffers.args[scalar::ROUTES] + row * comptime!(2 * experts.used);
        let mut sums = no_sums(LANES);
        for j in 0..comptime!(experts.used / per_row) {
            let place = result + j;
            let expert = match comptime!(experts.routed) {
                true => u32::cast_from(buffers.arena[(routes + place) as usize]),
                false => place,
            };
            let number = row * comptime!(experts.used) + place;
            let input = match comptime!(experts.inputs_per_row() > 1) {
                true => number,
                false => row,
            };
            let product = Product {
                entry: entry_of(&buffers, row, expert, comptime!(config.adapters())),
                number,
                x: buffers.args[scalar::X] + input * experts.k,
            };
            let mut weight = 1.0f32.runtime();
            if comptime!(experts.combine) {
                weight = buffers.arena[(routes + comptime!(experts.used) + place) as usize];
            }
            add_product(&buffers, &lows, &mut sums, &product, first, weight, experts);
        }
        let out = buffers.args[scalar::OUT] + (row * per_row + result) * experts.n;
        #[unroll]
        for i in 0..LANES {
            let lane = first + UNIT_POS + comptime!(i as u32 * UNITS);
            if lane < experts.n {
                put(buffers.arena, out + lane, sums[i]);
            }
        }
    }
}

/// Adds a product, as its adapter changes it, by its weight to the sums of lanes from `first` on.
#[cube]
fn add_product(
    buffers: &Buffers<'_>,
    lows: &Lows,
    sums: &mut Array<f32>,
    product: &Product,
    first: u32,
    weight: f32,
    #[comptime] config: ExpertsConfig,
) {
    let products = buffers.args[scalar::PRODUCTS] + product.number * config.n;
    let gain = buffers.pool[(product.entry + entry::GAIN_OUT) as usize];
    let bias = buffers.pool[(product.entry + entry::BIAS) as usize];
    let table = buffers.pool[(product.entry + entry::B) as usize];
    let format = buffers.pool[(product.entry + entry::FORMATS) as usize] >> FORMAT_BITS;
    let mut rank = buffers.pool[product.entry as usize];
    if table == 0 {
        rank = 0u32.runtime();
    }
    let mut own = no_sums(LANES);
    #[unroll]
    for i in 0..LANES {
        let lane = first + UNIT_POS + comptime!(i as u32 * UNITS);
        if lane < config.n {
            let mut value = buffers.arena[(products + lane) as usize];
            if gain > 0 {
                value *= f32::reinterpret(buffers.pool[(gain + lane) as usize]);
            }
            if bias > 0 {
                value += f32::reinterpret(buffers.pool[(bias + lane) as usize]);
            }
            own[i] = value;
        }
    }
    let mut done = 0u32;
    while done < rank {
        make_ranks(buffers, lows, product, done, rank, config);
        #[unroll]
        for i in 0..LANES {
            let lane = first + UNIT_POS + comptime!(i as u32 * UNITS);
            if lane < config.n {
                for r in 0..min(rank - done, RANKS) {
                    let b = b_value(buffers.pool, table, lane, done + r, rank, format);
                    own[i] += b * lows.ranks[r as usize];
                }
            }
        }
        done += RANKS;
    }
    #[unroll]
    for i in 0..LANES {
        sums[i] += own[i] * weight;
    }
}

/// `scale (A x)` of up to [`RANKS`] ranks from `first` on. All units must call it together, when none needs the last ones any more but
/// for what it has read.
#[cube]
fn make_ranks(
    buffers: &Buffers<'_>,
    lows: &Lows,
    product: &Product,
    first: u32,
    rank: u32,
    #[comptime] config: ExpertsConfig,
) {
    let table = buffers.pool[(product.entry + entry::A) as usize];
    let format = buffers.pool[(product.entry + entry::FORMATS) as usize] & FORMAT_MASK;
    let r = first + UNIT_POS / SHARE;
    let part = UNIT_POS % SHARE;
    let mut sum = 0.0f32;
    if r < rank {
        if table == 0 {
            // The identity: one unit has the lane.
            if part == 0 {
                sum = buffers.arena[(product.x + r) as usize];
            }
        } else {
            #[unroll]
            for known in 0..TABLE_FORMATS {
                if format == known {
                    let mut lane = part;
                    while lane < config.k {
                        let a = a_value(buffers.pool, table, r, lane, config.k, known);
                        sum += a * buffers.arena[(product.x + lane) as usize];
                        lane += SHARE;
                    }
                }
            }
        }
    }
    put(&lows.partials, UNIT_POS, sum);
    sync_cube();
    if UNIT_POS < RANKS && first + UNIT_POS < rank {
        let mut total = 0.0f32;
        #[unroll]
        for i in 0..SHARE {
            total += lows.partials[(UNIT_POS * SHARE + i) as usize];
        }
        let scales = buffers.pool[(product.entry + entry::SCALE) as usize];
        let scale = f32::reinterpret(buffers.pool[(scales + first + UNIT_POS) as usize]);
        put(&lows.ranks, UNIT_POS, total * scale);
    }
    sync_cube();
}
