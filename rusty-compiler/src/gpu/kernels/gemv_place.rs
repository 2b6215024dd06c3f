//! Where a unit of [the matrix-vector kernel](super::gemv) works.

use super::contract::{ContractConfig, PartConfig, scalar};
use super::env::Buffers;
use cubecl::prelude::*;

/// Where a unit works.
#[derive(CubeType)]
pub struct Place {
    /// The cube's first input row.
    pub row: u32,
    /// Its team's first lane.
    pub start: u32,
    /// The lane behind the launch's last.
    pub end: u32,
    /// Block of its team.
    pub block: u32,
    /// Bytes from the launch's weights to those that are meant: to an expert's.
    pub behind: u32,
}

/// Input row `m` of a cube whose first is `first`: the step's last where there are fewer.
#[cube]
pub fn cube_row(
    buffers: &Buffers<'_>,
    first: u32,
    #[comptime] m: u32,
    #[comptime] config: ContractConfig,
) -> u32 {
    if comptime!(config.cube_rows == 1) {
        first
    } else {
        min(first + m, buffers.step[comptime!(config.rows)] - 1)
    }
}

/// The byte at which lane `l` of the team's has a part's weights; the last lane's beyond the end.
#[cube]
pub fn row_address(
    buffers: &Buffers<'_>,
    place: &Place,
    #[comptime] unit_arg: usize,
    #[comptime] part: PartConfig,
    #[comptime] l: usize,
) -> u32 {
    let lane = min(place.start + comptime!(l as u32), place.end - 1);
    lane_address(buffers, lane, place.behind, unit_arg, part)
}

/// The byte at which lane `lane` has a part's weights, `behind` bytes from the launch's.
#[cube]
pub fn lane_address(
    buffers: &Buffers<'_>,
    lane: u32,
    behind: u32,
    #[comptime] unit_arg: usize,
    #[comptime] part: PartConfig,
) -> u32 {
    let first = buffers.args[comptime!(unit_arg + scalar::FIRST)];
    buffers.args[comptime!(part.arg)] + behind + (lane - first) * comptime!(part.row_bytes)
}

/// Number of the unit's runs in a weight's row, counted by all that a unit takes at a time. Behind the row's end it is the last
/// one's, whose inputs are zero.
#[cube]
pub fn unit_number(block: u32, #[comptime] config: ContractConfig) -> u32 {
    let team = comptime!(config.team_units());
    let mut number = block * team + UNIT_POS % team;
    if comptime!(!config.k.is_multiple_of(config.block())) {
        let last = comptime!(config.k.div_ceil(config.width()) - 1);
        number = min(number, last.runtime());
    }
    number
}
