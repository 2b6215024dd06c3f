//! How [the matrix-vector kernel](super::gemv) cuts rows among units, and the shared memory that takes.

use super::byte_inputs::RUN_WORDS;
use super::contract::{ContractConfig, PartConfig};
use super::decode::RUN;
use super::reduce::sum_words;
use rusty_loader::Format;

/// Units of a team where the target has no planes.
const SHARED_TEAM: u32 = 32;
/// Lanes of its input rows that a cube holds, as floats and as bytes: more leave room for fewer cubes.
const FLOATS: u32 = 2048;
const BYTES: u32 = 4096;

/// Units of a cube of `units` that share lanes; `plane` is 0 where the target has no planes.
pub fn team_units(units: u32, plane: u32) -> u32 {
    match plane {
        0 => SHARED_TEAM.min(units),
        plane => plane.min(units),
    }
}

impl ContractConfig {
    /// Units that share lanes.
    pub fn team_units(&self) -> u32 {
        team_units(self.team.units, self.team.plane)
    }

    /// Teams of a cube.
    pub fn teams(&self) -> u32 {
        self.team.units / self.team_units()
    }

    /// Runs that a unit takes at a time: two of blocks, which share bytes or a scale, unless more units would be idle at a
    /// row's end.
    pub fn runs(&self) -> u32 {
        let team = self.team_units() * RUN as u32;
        let blocks =
            |p: &PartConfig| matches!(p.format, Format::Blocks(c) if c.block_len % (2 * RUN) == 0);
        let whole = self.k.next_multiple_of(2 * team) == self.k.next_multiple_of(team);
        match whole && self.parts.iter().all(blocks) {
            true => 2,
            false => 1,
        }
    }

    /// Lanes of them.
    pub fn width(&self) -> u32 {
        self.runs() * RUN as u32
    }

    /// Lanes that a team takes of a weight's row at a time.
    pub fn block(&self) -> u32 {
        self.team_units() * self.width()
    }

    /// Neighbouring lanes of a unit. Block formats, and rows that are no whole blocks of a team's, are read by runs.
    pub fn chunk(&self) -> u32 {
        let spread = |p: &PartConfig| !matches!(p.format, Format::Blocks(_));
        if !self.parts.iter().all(spread) || !self.k.is_multiple_of(self.block()) {
            return self.width();
        }
        let halves = self.parts.iter().all(|p| p.format != Format::F32);
        match self.is_wide() && halves {
            true => 8,
            false => 4,
        }
    }

    /// Whether chunks are read as vectors of four words.
    pub fn is_wide(&self) -> bool {
        self.wide && self.parts.iter().all(|p| p.row_bytes.is_multiple_of(16))
    }

    /// Words between the lanes of a unit in shared memory: one more than there are units, or all would be written to one bank.
    pub fn stride(&self) -> u32 {
        self.team_units() + 1
    }

    /// Lanes of each input row in shared memory.
    pub fn segment(&self) -> u32 {
        let most = if self.bytes { BYTES } else { FLOATS };
        (most / self.cube_rows)
            .max(self.block())
            .min(self.k.next_multiple_of(self.block()))
    }

    /// Words of that segment, of one row.
    pub fn segment_words(&self) -> u32 {
        let of_unit = match self.bytes {
            true => self.runs() * RUN_WORDS,
            false => self.width(),
        };
        self.segment() / self.block() * of_unit * self.stride()
    }

    /// The same kernel for one row of floats, which takes what adapters' factors change.
    pub fn of_floats(&self) -> Self {
        Self {
            bytes: false,
            cube_rows: 1,
            ..self.clone()
        }
    }

    /// The same kernel for half as many rows, where those would be several.
    pub fn of_half(&self) -> Option<Self> {
        (self.cube_rows >= 4).then(|| Self {
            cube_rows: self.cube_rows / 2,
            ..self.clone()
        })
    }

    /// Whether there may be such rows beside others.
    pub fn has_both(&self) -> bool {
        self.bytes && self.adapters.is_some()
    }

    /// Words of all rows' segments.
    pub fn all_segment_words(&self) -> u32 {
        let floats = self.has_both().then(|| self.of_floats().segment_words());
        (self.cube_rows * self.segment_words()).max(floats.unwrap_or(0))
    }

    /// Sums of a unit of `parts` parts: `[row][lane][part]`.
    pub fn sums(&self, parts: usize) -> usize {
        (self.cube_rows * self.lanes) as usize * parts
    }

    /// The first of those of a row and lane.
    pub fn sum(&self, row: usize, lane: usize, parts: usize) -> usize {
        (row * self.lanes as usize + lane) * parts
    }

    /// Words of the teams' sums.
    pub fn total_words(&self) -> usize {
        self.teams() as usize * self.sums(self.most_parts())
    }

    /// Words of the units' sums, where the target has no planes.
    pub fn partial_words(&self) -> usize {
        match self.team.plane {
            0 => self.team.units as usize,
            _ => 1,
        }
    }

    /// Bytes of shared memory of the matrix-vector kernel.
    pub fn row_bytes(&self) -> u32 {
        let squares = (self.teams() * self.cube_rows) as usize;
        let segments = self.all_segment_words() as usize;
        let first = match self.first {
            // Each piece of code has its own.
            Some(_) => self.alike().len() * sum_words(self.team),
            None => 0,
        };
        4 * (segments + self.total_words() + self.partial_words() + squares + first) as u32
    }

    /// Lanes of a cube.
    pub fn cube_lanes(&self) -> u32 {
        self.teams() * self.lanes
    }
}
