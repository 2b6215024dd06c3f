//! Kernels that own whole rows: maps with several tails, gathers, row selection.
//!
//! A team takes one segment of one row of one tail: a cube of a wide segment, a plane of a narrow one. Norms and softmaxes over the
//! segment are [reduced](super::factors) by its team; all other instructions are evaluated lane by lane.

use super::body::Source;
use super::env::{Buffers, bound, header};
use super::factors::segment_factors;
use super::reduce::Team;
use super::sink::{Store, store_segment};
use crate::step::CHOSEN;
use cubecl::prelude::*;
use rusty_loader::Format;

/// Where rows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Tails read operands only.
    Map,
    /// The table's row of each row's token.
    Gather {
        /// Stored format of the table.
        format: Format,
        /// Stored bytes of a table row.
        row_bytes: u32,
        /// First of three scalars: byte of the chunk's first row, that row's token, tokens of the chunk.
        arg: usize,
        /// Whether adapters may change rows.
        changed: bool,
    },
    /// The rows that want an output.
    Select {
        /// Scalar: word of the activation.
        arg: usize,
        /// Its width.
        width: u32,
    },
}

/// What a row kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowsConfig {
    /// Units of a cube, whole teams.
    pub units: u32,
    /// Units that take a segment.
    pub team: Team,
    /// Header word of the row count.
    pub rows: usize,
    /// Where rows come from.
    pub origin: Origin,
    /// Tails.
    pub tails: Vec<Store>,
}

impl RowsConfig {
    /// Teams of a cube.
    pub fn teams(&self) -> u32 {
        self.units / self.team.units
    }

    /// Cubes of a row.
    pub fn cubes(&self) -> u32 {
        self.start(self.tails.len()).div_ceil(self.teams())
    }

    /// Segments of tail `t`.
    pub fn segments(&self, t: usize) -> u32 {
        self.tails[t].width.div_ceil(self.tails[t].program.segment)
    }

    /// Segments of the tails before `t`.
    pub fn start(&self, t: usize) -> u32 {
        (0..t).map(|i| self.segments(i)).sum()
    }

    /// Whether rows are those of tokens, some of which the step before may have chosen: the word buffer is then that of chosen tokens.
    pub fn takes_tokens(&self) -> bool {
        matches!(self.origin, Origin::Gather { .. })
    }

    /// What `Inst::Result` means behind this origin.
    pub fn source(origin: Origin) -> Source {
        match origin {
            Origin::Map => Source::None,
            Origin::Gather {
                format,
                changed: true,
                ..
            } => Source::ChangedWeight { format },
            Origin::Gather { format, .. } => Source::Weight { format },
            Origin::Select { .. } => Source::Arena,
        }
    }
}

/// Cubes: `(rows, segments of all tails by the teams of a cube)`.
#[cube(launch_unchecked)]
pub fn rows(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: RowsConfig,
) {
    let row = CUBE_POS_X;
    let count = step[comptime!(config.rows)];
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    if row < count {
        let (present, base) = locate(&buffers, row, comptime!(config.origin));
        if present {
            let segment = segment_of(comptime!(config.clone()));
            #[unroll]
            for t in 0..comptime!(config.tails.len()) {
                let start = comptime!(config.start(t));
                if segment >= start && segment < comptime!(config.start(t) + config.segments(t)) {
                    tail_segment(
                        &buffers,
                        base,
                        row,
                        segment - start,
                        comptime!(config.tails[t].clone()),
                        comptime!(config.team),
                    );
                }
            }
        }
    }
}

/// The segment of the unit's team, among those of all tails.
#[cube]
fn segment_of(#[comptime] config: RowsConfig) -> u32 {
    let teams = comptime!(config.teams());
    if comptime!(teams > 1) {
        CUBE_POS_Y * teams + UNIT_POS / config.team.units
    } else {
        CUBE_POS_Y
    }
}

/// Whether this launch's chunk has the row, and where it starts.
#[cube]
fn locate(buffers: &Buffers<'_>, row: u32, #[comptime] origin: Origin) -> (bool, u32) {
    match origin {
        Origin::Map => (true.runtime(), 0u32.runtime()),
        Origin::Gather { row_bytes, arg, .. } => {
            let mut token = buffers.step[(buffers.step[header::TOKENS] + row) as usize];
            if token >= comptime!(CHOSEN).runtime() {
                // Where there was none to choose it is in no chunk.
                token = buffers.words[(token - comptime!(CHOSEN)) as usize];
            }
            let first = buffers.args[comptime!(arg + 1)];
            let present = token >= first && token - first < buffers.args[comptime!(arg + 2)];
            (present, buffers.args[arg] + (token - first) * row_bytes)
        }
        Origin::Select { arg, width } => {
            let from = buffers.step[(buffers.step[header::OUTPUTS] + row) as usize];
            (true.runtime(), buffers.args[arg] + from * width)
        }
    }
}

#[cube]
fn tail_segment(
    buffers: &Buffers<'_>,
    base: u32,
    row: u32,
    segment: u32,
    #[comptime] store: Store,
    #[comptime] team: Team,
) {
    let results = Sequence::<f32>::new();
    let size = comptime!(store.program.segment);
    let first = segment * size;
    let end = min(first + size, comptime!(store.width).runtime());
    let factors = segment_factors(
        buffers,
        base,
        row,
        first,
        comptime!(store.program.clone()),
        team,
    );
    store_segment(
        buffers, &results, &factors, base, row, first, end, store, team,
    );
}
