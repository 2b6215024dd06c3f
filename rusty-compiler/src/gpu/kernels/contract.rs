//! What the contraction kernels share: how a contraction's parts and tails are cut into units.
//!
//! A *unit* is a set of parts of equal width that some tail reads together (gate and up), with the tails that
//! read them; parts that no tail combines (queries, keys, values) are units of their own. A launch covers a
//! range of lanes of each unit; a cube works inside one unit.

use super::body::Program;
use super::delta::{Adapters, adapted, entry_of, gain_in};
use super::env::Buffers;
use super::norms::{input_at, input_pair};
use super::reduce::Team;
use super::shrink::{SHRINK_CUBES, ShrinkConfig};
use super::sink::{Store, store_pair};
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

/// Whether a tile of `lanes` lanes lies in unit `u`, and the unit's lane at which it starts.
#[cube]
pub fn lane_in_unit(
    buffers: &Buffers<'_>,
    tile: u32,
    #[comptime] lanes: u32,
    #[comptime] config: ContractConfig,
    #[comptime] u: usize,
) -> (bool, u32) {
    let arg = comptime!(config.units[u].arg);
    let before = if comptime!(u == 0) {
        0u32.runtime()
    } else {
        buffers.args[comptime!(config.units[u - 1].arg + scalar::TILES)]
    };
    let inside = tile >= before && tile < buffers.args[comptime!(arg + scalar::TILES)];
    (
        inside,
        buffers.args[comptime!(arg + scalar::FIRST)] + (tile - before) * lanes,
    )
}

/// The input of part `part` at a lane of a row, as its adapter changes it, and what it adds to the squares of the row's norm; zero
/// past the row's end.
#[cube]
pub fn tile_input(
    buffers: &Buffers<'_>,
    row: u32,
    lane: u32,
    #[comptime] part: usize,
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
            let entry = entry_of(buffers, row, comptime!(part as u32).runtime(), adapters);
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
    #[comptime] part: usize,
    #[comptime] config: ContractConfig,
) -> (f32, f32, f32) {
    if comptime!(config.k.is_multiple_of(TILE_DEPTH)) {
        let program = comptime!(config.prologue.clone());
        let none = Sequence::<f32>::new();
        let (low, high, square) = input_pair(buffers, &none, row, lane, program);
        match comptime!(config.adapters) {
            Some(adapters) => {
                let entry = entry_of(buffers, row, comptime!(part as u32).runtime(), adapters);
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

/// Stores a pair of lanes of a unit from its products, `products[p][lane]` at `2 p + lane`.
#[cube]
pub fn finish_pair(
    buffers: &Buffers<'_>,
    products: &Array<f32>,
    row: u32,
    lane: u32,
    end: u32,
    #[comptime] unit: UnitConfig,
    #[comptime] parts: usize,
    #[comptime] adapters: Option<Adapters>,
) {
    let mut first = Sequence::<f32>::new();
    let mut second = Sequence::<f32>::new();
    #[unroll]
    for part in 0..parts {
        let place = comptime!(unit.parts.iter().position(|p| *p == part));
        match place {
            Some(p) => {
                let low = products[comptime!(p * 2)];
                let high = products[comptime!(p * 2 + 1)];
                match adapters {
                    Some(a) => {
                        first.push(adapted(buffers, low, row, lane, comptime!(part as u32), a));
                        let next = min(lane + 1, end - 1);
                        second.push(adapted(buffers, high, row, next, comptime!(part as u32), a));
                    }
                    None => {
                        first.push(low);
                        second.push(high);
                    }
                }
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
