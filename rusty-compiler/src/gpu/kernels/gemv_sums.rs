//! Shared memory of [the matrix-vector kernel](super::gemv), and how teams of units sum there.

use super::contract::ContractConfig;
use super::env::put;
use super::reduce::{plane_total, plane_totals, shared_total};
use cubecl::prelude::*;

/// Shared memory of a cube, whichever unit it works in.
#[derive(CubeType)]
pub struct CubeMemory {
    /// The input rows, a segment of each: floats by their bits, or bytes.
    pub segment: Shared<[u32]>,
    /// Sums of teams, `[team][row][lane][part]`.
    pub totals: Shared<[f32]>,
    /// Sums of units, where the target has no planes.
    partial: Shared<[f32]>,
    /// Each team's part of the squares of the input rows, `[row][team]`.
    pub squares: Shared<[f32]>,
}

#[cube]
impl CubeMemory {
    /// Memory for a configuration, and `segments` segments of its inputs.
    pub fn new(#[comptime] config: ContractConfig, #[comptime] segments: u32) -> Self {
        CubeMemory {
            segment: Shared::<[u32]>::new_slice(comptime!(
                (segments * config.all_segment_words()) as usize
            )),
            totals: Shared::<[f32]>::new_slice(comptime!(config.total_words())),
            partial: Shared::<[f32]>::new_slice(comptime!(config.partial_words())),
            squares: Shared::<[f32]>::new_slice(comptime!(
                (config.teams() * config.cube_rows) as usize
            )),
        }
    }
}

/// Sums over each team, into shared memory.
#[cube]
pub fn share(
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    #[comptime] config: ContractConfig,
    #[comptime] count: usize,
) {
    let (totals, partial) = (&memory.totals, &memory.partial);
    let size = comptime!(config.team_units());
    let team = UNIT_POS / size;
    let inner = UNIT_POS % size;
    let alike = comptime!(count.is_power_of_two() && count <= size as usize);
    if comptime!(config.team.plane > 0 && alike) {
        let each = comptime!(size / count as u32);
        let total = plane_totals(sums, count, size);
        if inner.is_multiple_of(each) {
            put(totals, team * comptime!(count as u32) + inner / each, total);
        }
    } else if comptime!(config.team.plane > 0) {
        #[unroll]
        for i in 0..count {
            let total = plane_total(sums[i], size);
            if inner == 0 {
                put(totals, team * comptime!(count as u32) + i as u32, total);
            }
        }
    } else {
        #[unroll]
        for i in 0..count {
            let total = shared_total(partial, sums[i], size);
            if inner == 0 {
                put(totals, team * comptime!(count as u32) + i as u32, total);
            }
        }
    }
    sync_cube();
}

/// Where the sums of row `m` and the cube's lane `lane` start among [`CubeMemory::totals`].
#[cube]
pub fn total_at(
    m: u32,
    lane: u32,
    #[comptime] parts: usize,
    #[comptime] config: ContractConfig,
) -> u32 {
    let team = lane / config.lanes;
    let of_team = team * config.cube_rows + m;
    (of_team * config.lanes + lane % config.lanes) * comptime!(parts as u32)
}

/// Each team's sums of squares, into shared memory.
#[cube]
pub fn share_squares(
    memory: &CubeMemory,
    squares: &Array<f32>,
    #[comptime] config: ContractConfig,
) {
    let size = comptime!(config.team_units());
    #[unroll]
    for m in 0..comptime!(config.cube_rows) {
        let total = if comptime!(config.team.plane > 0) {
            plane_total(squares[m as usize], size)
        } else {
            shared_total(&memory.partial, squares[m as usize], size)
        };
        if UNIT_POS.is_multiple_of(size) {
            let at = comptime!(m * config.teams()) + UNIT_POS / size;
            put(&memory.squares, at, total);
        }
    }
}
