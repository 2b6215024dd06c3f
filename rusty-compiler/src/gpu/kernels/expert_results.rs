//! What becomes of products with experts, or with the matrices of all heads, that other launches left: those of a row are summed where
//! they are summed, and tails make of them what is stored. With adapters `W x` becomes `gain_out (W x) + B (scale (A x)) + bias` of each
//! product's own expert and adapter before.
//!
//! One launch behind those of the products, whichever they are. With adapters a cube makes `A x` of a product in shared memory, `RANKS`
//! ranks at a time, and adds `B u` to [`CUBE_LANES`] lanes. Cubes of other lanes make the same `A x`, which costs less than a
//! launch and a way through memory would. Limits: inputs are not scaled, see [`Site::grouped`](rusty_graph::Site).

use super::contract::lane_tile;
use super::delta::{
    Adapters, FORMAT_BITS, FORMAT_MASK, TABLE_FORMATS, a_value, b_value, entry, entry_of,
};
use super::env::{Buffers, bound, put};
use super::experts::ExpertsConfig;
use super::reduce::no_sums;
use super::sink::{Store, store_pair};
use cubecl::prelude::*;

/// Units of a cube.
pub const UNITS: u32 = 128;
/// Lanes of a unit: pairs, [`UNITS`] pairs apart.
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
    /// How many they are; those of tails come behind.
    pub const COUNT: usize = 3;
}

/// What the kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExpertResultsConfig {
    /// Which products.
    pub experts: ExpertsConfig,
    /// With adapters, how many experts there are to choose from.
    pub adapted: Option<u32>,
    /// What is stored.
    pub tails: Vec<Store>,
}

impl ExpertResultsConfig {
    /// Results of a row and part: its products, or their sum.
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

    /// Where the tables of a product are, by its part and expert.
    fn adapters(&self, experts: u32) -> Adapters {
        Adapters {
            parts: self.experts.parts * experts,
            // `A x` stays in the cube.
            arg: 0,
            rows: self.experts.rows,
        }
    }

    /// Words that a cube has of its results: the code for adapters is there once for all parts.
    fn result_words(&self) -> u32 {
        self.experts.parts * CUBE_LANES
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        (UNITS + RANKS + self.result_words()) * 4
    }
}

/// Shared memory of a cube.
#[derive(CubeType)]
struct Lows {
    /// `[RANKS, SHARE]`.
    partials: Shared<[f32]>,
    /// `scale (A x)` of some ranks.
    ranks: Shared<[f32]>,
    /// `[part, LANES, UNITS]`: each unit's own lanes.
    results: Shared<[f32]>,
}

/// One of a row's products.
#[derive(CubeType)]
struct Product {
    /// Its table entry.
    entry: u32,
    /// Arena word of its lanes.
    lanes: u32,
    /// Arena word of its input.
    x: u32,
}

/// Cubes: `(rows, y * z >= cubes of a row's results)`; the results of all rows may be more than one dimension holds.
#[cube(launch_unchecked)]
pub fn expert_results(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: ExpertResultsConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let lows = Lows {
        partials: Shared::<[f32]>::new_slice(comptime!(UNITS as usize)),
        ranks: Shared::<[f32]>::new_slice(comptime!(RANKS as usize)),
        results: Shared::<[f32]>::new_slice(comptime!(config.result_words() as usize)),
    };
    let tiles = comptime!(config.tiles());
    let row = CUBE_POS_X;
    let result = lane_tile() / tiles;
    let first = lane_tile() % tiles * CUBE_LANES;
    if row < buffers.step[comptime!(config.experts.rows)]
        && result < comptime!(config.results_per_row())
    {
        for part in 0..comptime!(config.experts.parts) {
            let settings = comptime!(config.clone());
            let sums = part_sums(&buffers, &lows, row, result, part, first, settings);
            #[unroll]
            for i in 0..LANES {
                put(&lows.results, own_place(part, i), sums[i]);
            }
        }
        finish(&buffers, &lows, row, result, first, config);
    }
}

/// The lane of the unit, counted from the cube's first.
#[cube]
fn own_lane(#[comptime] i: usize) -> u32 {
    UNIT_POS * 2 + comptime!((i as u32 / 2) * 2 * UNITS + i as u32 % 2)
}

/// Where the cube has that lane of a part.
#[cube]
fn own_place(part: u32, #[comptime] i: usize) -> u32 {
    part * CUBE_LANES + comptime!(i as u32 * UNITS) + UNIT_POS
}

/// The unit's lanes of a row's result of a part.
#[cube]
fn part_sums(
    buffers: &Buffers<'_>,
    lows: &Lows,
    row: u32,
    result: u32,
    part: u32,
    first: u32,
    #[comptime] config: ExpertResultsConfig,
) -> Array<f32> {
    let experts = comptime!(config.experts);
    let routes = buffers.args[scalar::ROUTES] + row * comptime!(2 * experts.used);
    let products = buffers.args[scalar::PRODUCTS] + row * comptime!(experts.row_lanes());
    let products = products + part * comptime!(experts.part_lanes());
    let mut sums = no_sums(LANES);
    for j in 0..comptime!(experts.used / config.results_per_row()) {
        let place = result + j;
        let mut weight = 1.0f32.runtime();
        if comptime!(experts.combine) {
            weight = buffers.arena[(routes + comptime!(experts.used) + place) as usize];
        }
        let lanes = products + place * experts.n;
        let mut own = no_sums(LANES);
        match comptime!(config.adapted) {
            None => load_product(buffers, &mut own, lanes, first, experts),
            Some(count) => {
                let expert = match comptime!(experts.routed) {
                    true => u32::cast_from(buffers.arena[(routes + place) as usize]),
                    false => place,
                };
                let input = match comptime!(experts.inputs_per_row() > 1) {
                    true => row * comptime!(experts.used) + place,
                    false => row,
                };
                let entry = part * count + expert;
                let product = Product {
                    entry: entry_of(buffers, row, entry, comptime!(config.adapters(count))),
                    lanes,
                    x: buffers.args[scalar::X] + input * experts.k,
                };
                adapted_product(buffers, lows, &mut own, &product, first, experts);
            }
        }
        #[unroll]
        for i in 0..LANES {
            sums[i] += own[i] * weight;
        }
    }
    sums
}

/// What tails make of the unit's lanes of a row's results.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    lows: &Lows,
    row: u32,
    result: u32,
    first: u32,
    #[comptime] config: ExpertResultsConfig,
) {
    let n = comptime!(config.experts.n);
    #[unroll]
    for pair in 0..LANES / 2 {
        let (low, high) = comptime!((pair * 2, pair * 2 + 1));
        let lane = first + own_lane(low);
        if lane < n {
            let mut lows_of = Sequence::<f32>::new();
            let mut highs_of = Sequence::<f32>::new();
            #[unroll]
            for p in 0..comptime!(config.experts.parts) {
                lows_of.push(lows.results[own_place(p.runtime(), low) as usize]);
                highs_of.push(lows.results[own_place(p.runtime(), high) as usize]);
            }
            let factors = Sequence::<f32>::new();
            #[unroll]
            for t in 0..comptime!(config.tails.len()) {
                store_pair(
                    buffers,
                    &lows_of,
                    &highs_of,
                    &factors,
                    0u32,
                    row,
                    result * n + lane,
                    result * n + n,
                    comptime!(config.tails[t].clone()),
                );
            }
        }
    }
}

/// The unit's lanes of a product as it was left.
#[cube]
fn load_product(
    buffers: &Buffers<'_>,
    own: &mut Array<f32>,
    lanes: u32,
    first: u32,
    #[comptime] config: ExpertsConfig,
) {
    #[unroll]
    for i in 0..LANES {
        let lane = first + own_lane(i);
        if lane < config.n {
            own[i] = buffers.arena[(lanes + lane) as usize];
        }
    }
}

/// The unit's lanes of a product, as its adapter changes it.
#[cube]
fn adapted_product(
    buffers: &Buffers<'_>,
    lows: &Lows,
    own: &mut Array<f32>,
    product: &Product,
    first: u32,
    #[comptime] config: ExpertsConfig,
) {
    let gain = buffers.pool[(product.entry + entry::GAIN_OUT) as usize];
    let bias = buffers.pool[(product.entry + entry::BIAS) as usize];
    let table = buffers.pool[(product.entry + entry::B) as usize];
    let format = buffers.pool[(product.entry + entry::FORMATS) as usize] >> FORMAT_BITS;
    let mut rank = buffers.pool[product.entry as usize];
    if table == 0 {
        rank = 0u32.runtime();
    }
    load_product(buffers, own, product.lanes, first, config);
    #[unroll]
    for i in 0..LANES {
        let lane = first + own_lane(i);
        if lane < config.n {
            if gain > 0 {
                own[i] *= f32::reinterpret(buffers.pool[(gain + lane) as usize]);
            }
            if bias > 0 {
                own[i] += f32::reinterpret(buffers.pool[(bias + lane) as usize]);
            }
        }
    }
    let mut done = 0u32;
    while done < rank {
        make_ranks(buffers, lows, product, done, rank, config);
        #[unroll]
        for i in 0..LANES {
            let lane = first + own_lane(i);
            if lane < config.n {
                for r in 0..min(rank - done, RANKS) {
                    let b = b_value(buffers.pool, table, lane, done + r, rank, format);
                    own[i] += b * lows.ranks[r as usize];
                }
            }
        }
        done += RANKS;
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
