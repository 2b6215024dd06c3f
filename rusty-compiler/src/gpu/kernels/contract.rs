//! What the contraction kernels share: how a contraction's parts and tails are cut into units.
//!
//! A *unit* is a set of parts of equal width that some tail reads together (gate and up), with the tails that
//! read them; parts that no tail combines (queries, keys, values) are units of their own. A launch covers a
//! range of lanes of each unit; a cube works inside one unit, in code for all units that are [stored alike](super::unit_lanes).

use super::body::Program;
use super::delta::{Adapters, adapted, entry_of, gain_in};
use super::env::Buffers;
use super::norms::{input_at, input_pair};
use super::reduce::Team;
use super::shrink::{SHRINK_CUBES, ShrinkConfig};
use super::sink::{Store, store_pair};
use super::unit_lanes::{AlikeUnits, Lanes};
use cubecl::prelude::*;
use rusty_loader::Format;

/// Depth of tiles of matrix units: elements of a weight's row that a cube holds at once.
pub const TILE_DEPTH: u32 = 32;

/// A product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartConfig {
    /// Stored format.
    pub format: Format,
    /// Stored bytes of a row.
    pub row_bytes: u32,
    /// Scalar: byte of the row of the launch's first lane.
    pub arg: usize,
}

impl PartConfig {
    /// Whether the same code reads both.
    pub fn is_stored_like(&self, other: &Self) -> bool {
        (self.format, self.row_bytes) == (other.format, other.row_bytes)
    }
}

/// Scalars of a unit, counted from [`UnitConfig::arg`].
pub mod scalar {
    /// First lane of the launch.
    pub const FIRST: usize = 0;
    /// The lane behind its last.
    pub const END: usize = 1;
    /// Number of the first tile after this unit.
    pub const TILES: usize = 2;
    /// How many they are.
    pub const COUNT: usize = 3;
}

/// Parts and tails that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnitConfig {
    /// Numbers of its parts.
    pub parts: Vec<usize>,
    /// Tails that read them; their results are numbered like the contraction's parts.
    pub tails: Vec<Store>,
    /// First of the unit's [scalars](scalar).
    pub arg: usize,
}

/// What a contraction kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContractConfig {
    /// How units work together.
    pub team: Team,
    /// Header word of the row count.
    pub rows: usize,
    /// Input width.
    pub k: u32,
    /// What the matrix-vector kernel makes of a row first, and stores: instructions with a norm of the row, with which its prologue begins.
    pub first: Option<Store>,
    /// Makes the input row.
    pub prologue: Program,
    /// Products.
    pub parts: Vec<PartConfig>,
    /// How they are stored.
    pub units: Vec<UnitConfig>,
    /// Present in the adapter variant.
    pub adapters: Option<Adapters>,
    /// Lanes that a team of the matrix-vector kernel takes.
    pub lanes: u32,
    /// Rows of a cube of it, for all of which it reads and decodes a weight once.
    pub cube_rows: u32,
    /// Whether the device's language reads words as vectors where they lie so.
    pub wide: bool,
    /// Whether the matrix-vector kernel [multiplies bytes](super::gemv_bytes).
    pub bytes: bool,
    /// Whether it [asks for weights](super::gemv_ahead) before it makes its inputs, which CUDA has an instruction for.
    pub ahead: bool,
    /// Whether the first cubes of the matrix-vector kernel make [adapters' first factor](super::shrink::shrink_row()).
    pub shrinks: bool,
}

impl ContractConfig {
    /// Adapters' first factor as a kernel of the same cubes makes it; none without adapters.
    pub fn shrink(&self) -> Option<ShrinkConfig> {
        Some(ShrinkConfig {
            team: self.team,
            k: self.k,
            prologue: self.prologue.clone(),
            adapters: self.adapters?,
        })
    }

    /// Cubes that make it in the launch that needs it, beside those of the same rows.
    pub fn shrink_cubes(&self) -> u32 {
        match (self.adapters, self.shrinks) {
            (Some(adapters), true) => adapters.parts * SHRINK_CUBES * self.cube_rows,
            _ => 0,
        }
    }

    /// The most parts of a unit.
    pub fn most_parts(&self) -> usize {
        let parts = self.units.iter().map(|u| u.parts.len());
        parts.max().unwrap_or(1)
    }
}

/// The input of part `part` at a lane of a row, as its adapter changes it, and what it adds to the squares of the row's norm; zero
/// past the row's end.
#[cube]
pub fn tile_input(
    buffers: &Buffers<'_>,
    row: u32,
    lane: u32,
    part: u32,
    #[comptime] config: ContractConfig,
) -> (f32, f32) {
    let mut value = 0.0f32;
    let mut square = 0.0f32;
    if lane < config.k {
        let program = comptime!(config.prologue.clone());
        let none = Sequence::<f32>::new();
        let (input, squared) = input_at(buffers, &none, row, lane, program);
        value = input;
        square = squared;
        if let Some(adapters) = comptime!(config.adapters) {
            let entry = entry_of(buffers, row, part, adapters);
            value *= gain_in(buffers, entry, lane);
        }
    }
    (value, square)
}

/// [`tile_input()`] at `lane`, an even number, and the lane behind it, with what both add.
#[cube]
pub fn tile_pair(
    buffers: &Buffers<'_>,
    row: u32,
    lane: u32,
    part: u32,
    #[comptime] config: ContractConfig,
) -> (f32, f32, f32) {
    if comptime!(config.k.is_multiple_of(TILE_DEPTH)) {
        let program = comptime!(config.prologue.clone());
        let none = Sequence::<f32>::new();
        let (low, high, square) = input_pair(buffers, &none, row, lane, program);
        match comptime!(config.adapters) {
            Some(adapters) => {
                let entry = entry_of(buffers, row, part, adapters);
                (
                    low * gain_in(buffers, entry, lane),
                    high * gain_in(buffers, entry, lane + 1),
                    square,
                )
            }
            None => (low, high, square),
        }
    } else {
        let first = comptime!(config.clone());
        let (low, square) = tile_input(buffers, row, lane, part, first);
        let (high, other) = tile_input(buffers, row, lane + 1, part, config);
        (low, high, square + other)
    }
}

/// Number of a contraction's tile of lanes; `CUBE_POS_X` is that of its rows. Cubes of the same weights and other rows are neighbours,
/// so that they find those in the cache.
#[cube]
pub fn lane_tile() -> u32 {
    CUBE_POS_Z * CUBE_COUNT_Y + CUBE_POS_Y
}

/// Number of the tile: cubes lie in two dimensions because one is limited to 65,535.
#[cube]
pub fn tile_number() -> u32 {
    CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X
}

/// Stores a pair of lanes of the cube's unit from its products, `products[p][lane]` at `2 p + lane`, which its adapters change.
#[cube]
pub fn finish_pair(
    buffers: &Buffers<'_>,
    products: &mut Array<f32>,
    row: u32,
    lane: u32,
    lanes: &Lanes,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    if let Some(adapters) = comptime!(config.adapters) {
        let next = min(lane + 1, lanes.end - 1);
        #[unroll]
        for p in 0..comptime!(alike.parts.len()) {
            let (low, high) = comptime!((p * 2, p * 2 + 1));
            let part = lanes.parts[p];
            products[low] = adapted(buffers, products[low], row, lane, part, adapters);
            products[high] = adapted(buffers, products[high], row, next, part, adapters);
        }
    }
    #[unroll]
    for i in 0..comptime!(alike.units.len()) {
        let own = match comptime!(alike.units.len() == 1) {
            true => true.runtime(),
            false => lanes.unit == comptime!(i as u32),
        };
        if own {
            let (unit, parts) =
                comptime!((config.units[alike.units[i]].clone(), config.parts.len()));
            store_unit(buffers, &*products, row, lane, lanes.end, unit, parts);
        }
    }
}

/// Stores a pair of lanes of a unit from the products of its parts, which are some of the contraction's `parts`.
#[cube]
pub fn store_unit(
    buffers: &Buffers<'_>,
    products: &Array<f32>,
    row: u32,
    lane: u32,
    end: u32,
    #[comptime] unit: UnitConfig,
    #[comptime] parts: usize,
) {
    let mut first = Sequence::<f32>::new();
    let mut second = Sequence::<f32>::new();
    #[unroll]
    for part in 0..parts {
        let place = comptime!(unit.parts.iter().position(|p| *p == part));
        match place {
            Some(p) => {
                first.push(products[comptime!(p * 2)]);
                second.push(products[comptime!(p * 2 + 1)]);
            }
            None => {
                first.push(0.0f32.runtime());
                second.push(0.0f32.runtime());
            }
        }
    }
    let factors = Sequence::<f32>::new();
    #[unroll]
    for t in 0..comptime!(unit.tails.len()) {
        store_pair(
            buffers,
            &first,
            &second,
            &factors,
            0u32,
            row,
            lane,
            end,
            comptime!(unit.tails[t].clone()),
        );
    }
}
