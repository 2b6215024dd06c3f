//! Where a unit of [the matrix-vector kernel](super::gemv) works.

use super::contract::{ContractConfig, PartConfig};
use super::env::Buffers;
use super::unit_lanes::Lanes;
use cubecl::prelude::*;

/// Where a unit works.
#[derive(CubeType)]
pub struct Place {
    /// Its team's first lane.
    pub start: u32,
    /// Block of its team.
    pub block: u32,
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

/// The byte at which lane `l` of the team's has the weights of the unit's part `p`; the last lane's beyond the end.
#[cube]
pub fn row_address(
    lanes: &Lanes,
    place: &Place,
    #[comptime] part: PartConfig,
    #[comptime] p: usize,
    #[comptime] l: usize,
) -> u32 {
    let lane = min(place.start + comptime!(l as u32), lanes.end - 1);
    lane_address(lanes, lane, part, p)
}

/// The byte at which lane `lane` of the cube has the weights of the unit's part `p`.
#[cube]
pub fn lane_address(
    lanes: &Lanes,
    lane: u32,
    #[comptime] part: PartConfig,
    #[comptime] p: usize,
) -> u32 {
    lanes.rows[p] + (lane - lanes.first) * comptime!(part.row_bytes)
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
