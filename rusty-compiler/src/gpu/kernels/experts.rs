//! Products of few rows with the experts that each row takes, or with the matrices of all heads: [matrix-vector
//! products](super::gemv) whose weights are found by an expert's index, for one of a row's experts or for the sum over all of them.
//! Parts that share an input (gate and up) are multiplied side by side, and tails make of them what is stored. Experts lie at equal
//! distances in the weights. Limits: all experts of a part have one format.

use super::contract::{self, ContractConfig, lane_tile};
use super::env::{Buffers, bound, put};
use super::gemv_place::Place;
use super::gemv_products::{add_block, add_products, make_segment, span_of};
use super::gemv_sums::{CubeMemory, share, total_at};
use super::reduce::no_sums;
use super::sink::{Store, store_pair};
use super::unit_lanes::{Lanes, lanes_of_tile};
use cubecl::prelude::*;

/// Scalars of a launch. The first are those of a contraction's unit.
pub mod scalar {
    use super::contract::scalar as unit;

    /// First lane of the launch.
    pub const FIRST: usize = unit::FIRST;
    /// The lane behind its last.
    pub const END: usize = unit::END;
    /// Tiles of lanes.
    pub const TILES: usize = unit::TILES;
    /// Arena word of the inputs.
    pub const X: usize = unit::COUNT;
    /// Arena word of the routes.
    pub const ROUTES: usize = X + 1;
    /// Arena word of products that are left as they are.
    pub const OUT: usize = X + 2;
    const PARTS: usize = X + 3;

    /// Of a part, the byte of the first expert's row of the first lane.
    pub const fn rows(part: usize) -> usize {
        PARTS + 2 * part
    }

    /// Of a part, bytes from an expert to the next.
    pub const fn stride(part: usize) -> usize {
        rows(part) + 1
    }

    /// How many they are; those of tails come behind.
    pub const fn count(parts: usize) -> usize {
        rows(parts)
    }
}

/// What kernels of products are specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertsConfig {
    /// Header word of the row count.
    pub rows: usize,
    /// Input width.
    pub k: u32,
    /// Output width of an expert.
    pub n: u32,
    /// Experts that a row takes.
    pub used: u32,
    /// Whether a row's products are chosen by routes, or are all there are.
    pub routed: bool,
    /// Whether products are summed in the end: each has an input of its own.
    pub combine: bool,
    /// Products with each of a row's experts.
    pub parts: u32,
}

impl ExpertsConfig {
    /// Inputs that a row has.
    pub fn inputs_per_row(&self) -> u32 {
        match self.combine || !self.routed {
            true => self.used,
            false => 1,
        }
    }

    /// Lanes of a part's products of a row.
    pub fn part_lanes(&self) -> u32 {
        self.used * self.n
    }

    /// Lanes of all of a row's products.
    pub fn row_lanes(&self) -> u32 {
        self.parts * self.part_lanes()
    }
}

/// How a launch for few rows sums the products of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Summing {
    /// Not at all: each is a result.
    Nothing,
    /// One behind the other, each by all teams of a cube.
    InTurn,
    /// Side by side, each by one team, all of a cube for the same lanes: teams wait for memory once, not for each product. The inputs of
    /// all of them are in shared memory together.
    SideBySide,
}

/// The same for few rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FewExpertsConfig {
    /// Which products.
    pub experts: ExpertsConfig,
    /// Those of one expert as a contraction of one unit.
    pub product: ContractConfig,
    /// Whether the launch sums them.
    pub sums: Summing,
    /// What becomes of them; none where they are left as they are.
    pub tails: Vec<Store>,
}

impl FewExpertsConfig {
    /// Results that a row has.
    pub fn results_per_row(&self) -> u32 {
        match self.sums {
            Summing::Nothing => self.experts.used,
            Summing::InTurn | Summing::SideBySide => 1,
        }
    }

    /// Lanes of a cube.
    pub fn cube_lanes(&self) -> u32 {
        match self.sums {
            Summing::SideBySide => self.product.lanes,
            Summing::Nothing | Summing::InTurn => self.product.cube_lanes(),
        }
    }

    /// Segments of inputs that a cube holds.
    fn segments(&self) -> u32 {
        match self.sums {
            Summing::SideBySide => self.experts.used,
            Summing::Nothing | Summing::InTurn => 1,
        }
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        let further = (self.segments() - 1) * self.product.all_segment_words();
        self.product.row_bytes() + 4 * further
    }

    /// Whether a cube may hold the inputs of all of a row's products, in so many bytes of shared memory.
    pub fn may_sum_side_by_side(&self, room: u32) -> bool {
        let whole = self.product.segment() >= self.experts.k;
        let all = Self {
            sums: Summing::SideBySide,
            ..self.clone()
        };
        self.experts.combine && whole && all.shared_bytes() <= room
    }
}

/// Cubes: `(results of all rows, y * z >= tiles)`.
#[cube(launch_unchecked)]
pub fn experts(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: FewExpertsConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let per_row = comptime!(config.results_per_row());
    let memory = CubeMemory::new(
        comptime!(config.product.clone()),
        comptime!(config.segments()),
    );
    if CUBE_POS_X < buffers.step[comptime!(config.experts.rows)] * per_row {
        let (lanes, product) = comptime!((config.cube_lanes(), config.product.clone()));
        let alike = comptime!(config.product.alike()[0].clone());
        let (inside, lanes) = lanes_of_tile(&buffers, lane_tile(), lanes, product, alike);
        if inside {
            result_lanes(&buffers, &memory, CUBE_POS_X, &lanes, config);
        }
    }
}

/// The cube's lanes, which are the first expert's, of result `result`, a product or a row's sum of products.
#[cube]
fn result_lanes(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    result: u32,
    lanes: &Lanes,
    #[comptime] config: FewExpertsConfig,
) {
    let per_row = comptime!(config.results_per_row());
    let (row, place) = (result / per_row, result % per_row);
    let count = comptime!(config.product.sums(config.experts.parts as usize));
    let mut sums = no_sums(count);
    match comptime!(config.sums) {
        Summing::SideBySide => {
            sum_side_by_side(
                buffers,
                memory,
                &mut sums,
                row,
                lanes,
                comptime!(config.clone()),
            );
        }
        Summing::Nothing | Summing::InTurn => {
            let settings = comptime!(config.clone());
            sum_in_turn(buffers, memory, &mut sums, row, place, lanes, settings);
        }
    }
    share(memory, &mut sums, comptime!(config.product.clone()), count);
    let local = UNIT_POS * 2;
    let there = UNIT_POS < comptime!(config.cube_lanes() / 2);
    if there && lanes.first + local < lanes.end {
        finish(buffers, memory, row, place, local, lanes, config);
    }
}

/// Each unit's part of a row's products from `place` on, one, or all by their weights. All units of the cube must call it together.
#[cube]
fn sum_in_turn(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    row: u32,
    place: u32,
    lanes: &Lanes,
    #[comptime] config: FewExpertsConfig,
) {
    let experts = comptime!(config.experts);
    let count = comptime!(config.product.sums(experts.parts as usize));
    for j in 0..comptime!(experts.used / config.results_per_row()) {
        let (own, weight) = expert_at(buffers, row, place + j, lanes, experts);
        let input = match comptime!(experts.inputs_per_row() > 1) {
            true => row * comptime!(experts.used) + place + j,
            false => row,
        };
        let span = span_of(input, &own, Sequence::new());
        let mut products = no_sums(count);
        let mut squares = no_sums(1usize);
        let product = comptime!(config.product.clone());
        let alike = comptime!(config.product.alike()[0].clone());
        add_products(
            buffers,
            memory,
            &mut products,
            &mut squares,
            &span,
            product,
            alike,
        );
        if comptime!(config.sums == Summing::InTurn) {
            // The next product's inputs take the place of this one's.
            sync_cube();
            #[unroll]
            for i in 0..count {
                sums[i] += products[i] * weight;
            }
        } else {
            #[unroll]
            for i in 0..count {
                sums[i] = products[i];
            }
        }
    }
}

/// Each unit's part of a row's products by their weights, of those of its team. All units of the cube must call it together.
#[cube]
fn sum_side_by_side(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    row: u32,
    lanes: &Lanes,
    #[comptime] config: FewExpertsConfig,
) {
    let experts = comptime!(config.experts);
    let segment = &memory.segment;
    let count = comptime!(config.product.sums(experts.parts as usize));
    let (words, held) = comptime!((
        config.product.all_segment_words(),
        config.product.segment() / config.product.block(),
    ));
    let mut squares = no_sums(1usize);
    for j in 0..comptime!(experts.used) {
        let span = span_of(row * comptime!(experts.used) + j, lanes, Sequence::new());
        let (blocks, product) = comptime!((held, config.product.clone()));
        make_segment(
            buffers,
            segment,
            &mut squares,
            &span,
            0u32,
            blocks.runtime(),
            j * words,
            product,
        );
    }
    sync_cube();
    let mut place = UNIT_POS / comptime!(config.product.team_units());
    while place < experts.used {
        let (own, weight) = expert_at(buffers, row, place, lanes, experts);
        let span = span_of(row, &own, Sequence::new());
        let mut products = no_sums(count);
        for b in 0..held {
            let at = Place {
                start: lanes.first,
                block: b,
            };
            let product = comptime!(config.product.clone());
            let alike = comptime!(config.product.alike()[0].clone());
            let of_segment = place * held + b;
            add_block(
                buffers,
                segment,
                &mut products,
                &span,
                &at,
                of_segment,
                product,
                alike,
            );
        }
        #[unroll]
        for i in 0..count {
            sums[i] += products[i] * weight;
        }
        place += comptime!(config.product.teams());
    }
}

/// The given lanes, which are the first expert's, of the expert at a place of a row, and its weight; of matrices of heads the place's.
#[cube]
fn expert_at(
    buffers: &Buffers<'_>,
    row: u32,
    place: u32,
    lanes: &Lanes,
    #[comptime] experts: ExpertsConfig,
) -> (Lanes, f32) {
    let routes = buffers.args[scalar::ROUTES] + row * comptime!(2 * experts.used);
    let expert = match comptime!(experts.routed) {
        true => u32::cast_from(buffers.arena[(routes + place) as usize]),
        false => place,
    };
    let mut weight = 1.0f32.runtime();
    if comptime!(experts.combine) {
        weight = buffers.arena[(routes + comptime!(experts.used) + place) as usize];
    }
    let own = lanes_of_expert(buffers, lanes, expert, comptime!(experts.parts as usize));
    (own, weight)
}

/// What becomes of a pair of the cube's lanes, from `local` on, of a row's products with the expert at `place`, or of their sums.
#[cube]
fn finish(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    row: u32,
    place: u32,
    local: u32,
    lanes: &Lanes,
    #[comptime] config: FewExpertsConfig,
) {
    let experts = comptime!(config.experts);
    let parts = comptime!(experts.parts as usize);
    let lane = place * comptime!(experts.n) + lanes.first + local;
    let end = place * comptime!(experts.n) + lanes.end;
    let mut first = Sequence::<f32>::new();
    let mut second = Sequence::<f32>::new();
    #[unroll]
    for p in 0..parts {
        first.push(total_of(memory, local, comptime!(config.clone()), p));
        second.push(total_of(memory, local + 1, comptime!(config.clone()), p));
    }
    if comptime!(config.tails.is_empty()) {
        let out = buffers.args[scalar::OUT] + row * comptime!(experts.row_lanes()) + lane;
        #[unroll]
        for p in 0..parts {
            let at = out + comptime!(p as u32 * experts.part_lanes());
            put(buffers.arena, at, first[p]);
            if lane + 1 < end {
                put(buffers.arena, at + 1, second[p]);
            }
        }
    }
    let factors = Sequence::<f32>::new();
    #[unroll]
    for t in 0..comptime!(config.tails.len()) {
        let tail = comptime!(config.tails[t].clone());
        store_pair(
            buffers, &first, &second, &factors, 0u32, row, lane, end, tail,
        );
    }
}

/// The sum of a part at the cube's lane `local`.
#[cube]
fn total_of(
    memory: &CubeMemory,
    local: u32,
    #[comptime] config: FewExpertsConfig,
    #[comptime] p: usize,
) -> f32 {
    let (parts, own) = comptime!((config.experts.parts as usize, p as u32));
    let at = total_at(0u32, local, parts, comptime!(config.product.clone())) + own;
    let mut total = memory.totals[at as usize];
    if comptime!(config.sums == Summing::SideBySide) {
        let of_team = comptime!(config.product.sums(parts) as u32);
        for team in 1..comptime!(config.product.teams()) {
            total += memory.totals[(at + team * of_team) as usize];
        }
    }
    total
}

/// The same lanes of expert `expert`; those given are the first's.
#[cube]
fn lanes_of_expert(
    buffers: &Buffers<'_>,
    lanes: &Lanes,
    expert: u32,
    #[comptime] parts: usize,
) -> Lanes {
    let mut rows = Sequence::<u32>::new();
    #[unroll]
    for p in 0..parts {
        rows.push(lanes.rows[p] + expert * buffers.args[comptime!(scalar::stride(p))]);
    }
    Lanes {
        first: lanes.first,
        end: lanes.end,
        unit: lanes.unit,
        rows,
        parts: lanes.parts.clone(),
    }
}
