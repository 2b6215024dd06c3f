//! Where a unit of [the matrix-vector kernel](super::gemv) works.

use super::contract::{ContractConfig, PartConfig, scalar};
use super::env::Buffers;
use cubecl::prelude::*;

/// Where a unit works.
#[derive(CubeType)]
pub struct Place {
    /// Row of the step.
    pub row: u32,
    /// Its team's first lane.
    pub start: u32,
    /// The lane behind the launch's last.
    pub end: u32,
    /// Block of its team.
    pub block: u32,
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
    let first = buffers.args[comptime!(unit_arg + scalar::FIRST)];
    let lane = min(place.start + comptime!(l as u32), place.end - 1);
    buffers.args[comptime!(part.arg)] + (lane - first) * comptime!(part.row_bytes)
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
