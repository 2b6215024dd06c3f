//! Which unit's lanes a cube of a [contraction](super::contract) makes, and where their weights lie.
//!
//! Units whose parts are stored alike (queries, keys and often values) share a piece of code, which finds out at run time whose lanes
//! it makes: kernels are as much shorter, which whoever compiles them (driver, NVRTC) takes more than that much less time for. Only their
//! tails are told apart.

use super::contract::{ContractConfig, PartConfig, scalar};
use super::env::Buffers;
use cubecl::prelude::*;

/// Units whose parts are stored alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AlikeUnits {
    /// Their numbers.
    pub units: Vec<usize>,
    /// The parts of the first. Those of others lie elsewhere ([`PartConfig::arg`]), of which [`Lanes`] know.
    pub parts: Vec<PartConfig>,
}

impl ContractConfig {
    /// The units, by how their parts are stored.
    pub fn alike(&self) -> Vec<AlikeUnits> {
        let mut all: Vec<AlikeUnits> = Vec::new();
        for (number, unit) in self.units.iter().enumerate() {
            let parts: Vec<_> = unit.parts.iter().map(|p| self.parts[*p]).collect();
            let known = all.iter_mut().find(|alike| {
                let mut pairs = alike.parts.iter().zip(&parts);
                alike.parts.len() == parts.len() && pairs.all(|(a, b)| a.is_stored_like(b))
            });
            match known {
                Some(alike) => alike.units.push(number),
                None => all.push(AlikeUnits {
                    units: vec![number],
                    parts,
                }),
            }
        }
        all
    }
}

/// The lanes that a cube makes.
#[derive(CubeType)]
pub struct Lanes {
    /// The first.
    pub first: u32,
    /// The lane of the unit behind the launch's last.
    pub end: u32,
    /// Which of the alike units it is.
    pub unit: u32,
    /// Of each of the unit's parts the byte at which the first lane's weights start.
    pub rows: Sequence<u32>,
    /// Their numbers among the contraction's parts.
    pub parts: Sequence<u32>,
}

/// Whether tile `tile` of `lanes` lanes is one of the alike units', and its lanes.
#[cube]
pub fn lanes_of_tile(
    buffers: &Buffers<'_>,
    tile: u32,
    #[comptime] lanes: u32,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) -> (bool, Lanes) {
    let mut inside = false.runtime();
    let mut unit = 0u32.runtime();
    let mut before = 0u32.runtime();
    let mut begin = 0u32.runtime();
    let mut end = 0u32.runtime();
    #[unroll]
    for i in 0..comptime!(alike.units.len()) {
        let u = comptime!(alike.units[i]);
        let arg = comptime!(config.units[u].arg);
        let (own, tiles_before) = is_in_unit(buffers, tile, comptime!(config.clone()), u);
        let own_begin = buffers.args[comptime!(arg + scalar::FIRST)];
        let own_end = buffers.args[comptime!(arg + scalar::END)];
        if comptime!(i == 0) {
            inside = own;
            before = tiles_before;
            begin = own_begin;
            end = own_end;
        } else {
            inside = inside || own;
            unit = select(own, comptime!(i as u32).runtime(), unit);
            before = select(own, tiles_before, before);
            begin = select(own, own_begin, begin);
            end = select(own, own_end, end);
        }
    }
    let past = (tile - before) * lanes;
    let mut rows = Sequence::<u32>::new();
    let mut parts = Sequence::<u32>::new();
    #[unroll]
    for p in 0..comptime!(alike.parts.len()) {
        let mut row = 0u32.runtime();
        let mut part = 0u32.runtime();
        #[unroll]
        for i in 0..comptime!(alike.units.len()) {
            let number = comptime!(config.units[alike.units[i]].parts[p]);
            let own_row = buffers.args[comptime!(config.parts[number].arg)];
            let own_part = comptime!(number as u32).runtime();
            if comptime!(i == 0) {
                row = own_row;
                part = own_part;
            } else {
                row = select(unit == comptime!(i as u32), own_row, row);
                part = select(unit == comptime!(i as u32), own_part, part);
            }
        }
        rows.push(row + past * comptime!(alike.parts[p].row_bytes));
        parts.push(part);
    }
    let lanes = Lanes {
        first: begin + past,
        end,
        unit,
        rows,
        parts,
    };
    (inside, lanes)
}

/// Whether a tile is one of unit `u`, and how many come before its first.
#[cube]
fn is_in_unit(
    buffers: &Buffers<'_>,
    tile: u32,
    #[comptime] config: ContractConfig,
    #[comptime] u: usize,
) -> (bool, u32) {
    let before = if comptime!(u == 0) {
        0u32.runtime()
    } else {
        buffers.args[comptime!(config.units[u - 1].arg + scalar::TILES)]
    };
    let end = buffers.args[comptime!(config.units[u].arg + scalar::TILES)];
    (tile >= before && tile < end, before)
}
