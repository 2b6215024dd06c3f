//! Where a thread's stream of weights goes on.
//!
//! Most cores read memory at full speed only while they ask for what they need next. Rows of floats are several streams at
//! once, each of which asks for what follows in it ([`super::prefetch::Ask`]). Panels are one stream, or [some side by
//! side](streams) where there is one row: inside a strip what comes next lies behind what is read, at a
//! strip's end in the strip that the thread goes on with, at a kernel's end in the next kernel's. A thread therefore draws
//! its next piece of work before it multiplies the last columns of the one it has.
//!
//! Some cores read long runs ahead on their own ([`rusty_backend::Target::reads_ahead`]). There [one row](super::one_row) is multiplied
//! in another way.

use super::context::Context;
use super::contract::Contract;
use super::deltas::injection::Sites;
use super::panel::PanelLayout;
use super::simd::{LANES, Level};
use super::weights::Matrix;
use rusty_graph::WeightId;

/// How far ahead of its use memory is asked for, in whole panels of at least so many bytes together: more than memory's
/// latency times a core's share of its bandwidth.
const PANEL_BYTES: usize = 12 << 10;

/// Panels from a [stream](Level::row_panels) of one row to the next where there are several, evenly spread over so many columns.
fn apart(level: Level, columns: usize) -> Option<usize> {
    let lanes = level.row_panels() * LANES;
    let even = lanes > LANES && columns > 0 && columns.is_multiple_of(lanes);
    even.then_some(columns / lanes)
}

/// Streams in which so many columns of a matrix are read. One row is multiplied with several panels side by side: memory answers
/// several streams faster than one, and whatever a core is waiting for in one, it goes on with the others.
pub(super) fn streams(level: Level, matrix: &Matrix, (rows, columns): (usize, usize)) -> usize {
    let several = rows == 1 && matches!(matrix, Matrix::Panels { .. });
    match several && apart(level, columns).is_some() {
        true => level.row_panels(),
        false => 1,
    }
}

/// Columns of a matrix, in memory.
#[derive(Clone, Copy)]
pub(super) struct Stream {
    /// First byte; null where products read a copy that they make themselves, or ask for what follows themselves.
    at: *const u8,
    /// Columns that are read while memory answers.
    columns: usize,
    /// Bytes of those.
    bytes: usize,
    /// Bytes from one to the next of the panels that one row reads at a time: evenly spread where they are multiplied side by
    /// side, otherwise neighbours.
    step: usize,
}

impl Stream {
    /// Nothing to ask for.
    pub(super) const NONE: Stream = Stream {
        at: std::ptr::null(),
        columns: 0,
        bytes: 0,
        step: 0,
    };

    /// Columns of a matrix, `columns` from `column` on.
    pub(super) fn new(
        ctx: &Context<'_>,
        weight: WeightId,
        (column, columns): (usize, usize),
    ) -> Self {
        match ctx.weights.matrix_of(weight) {
            Some(Matrix::Panels { layout, offset }) => {
                let apart = apart(ctx.level, columns).unwrap_or(1);
                let first = ctx.weights.panels.ptr().wrapping_add(*offset);
                Self::of_panels(layout, first, column, apart)
            }
            Some(Matrix::Late(late)) => Self::of_panels(&late.layout, late.place(0), column, 1),
            // Rows of floats are several streams, see [`super::prefetch::Ask`].
            Some(Matrix::Float { .. } | Matrix::Short(_) | Matrix::Stored { .. }) | None => {
                Stream::NONE
            }
        }
    }

    /// Panels from `column` on, of which one row reads every `apart`-th side by side.
    fn of_panels(layout: &PanelLayout, first: *const u8, column: usize, apart: usize) -> Self {
        let panel = layout.panel_bytes();
        let panels = PANEL_BYTES.div_ceil(panel);
        Stream {
            at: first.wrapping_add(column / LANES * panel),
            columns: panels * LANES,
            bytes: panels * panel,
            step: apart * panel,
        }
    }

    /// Of `columns` columns, how many are read while only what lies behind them is asked for.
    pub(super) fn lead(self, columns: usize) -> usize {
        let lead = columns.saturating_sub(self.columns);
        lead.next_multiple_of(LANES).min(columns)
    }

    /// Where the first panel begins that one row reads, null where there is nothing to ask for, and how far behind it the one
    /// beside it does.
    pub(super) fn beginnings(self) -> (*const u8, usize) {
        (self.at, self.step)
    }

    /// Bytes from one stream to another; none where there is nothing to ask for.
    pub(super) fn distance_to(self, other: Stream) -> Option<isize> {
        let both = !self.at.is_null() && !other.at.is_null();
        both.then(|| other.at.addr().wrapping_sub(self.at.addr()).cast_signed())
    }

    /// Bytes to what is asked for while these columns are read and more than [`Stream::columns`] follow.
    pub(super) fn distance(self) -> Option<isize> {
        (!self.at.is_null()).then_some(self.bytes.cast_signed())
    }
}

/// What a contraction has asked for ahead for the one that follows it.
pub(super) struct Next {
    /// The weight that is multiplied first, and its columns.
    weight: WeightId,
    n: usize,
    strip: usize,
    /// Whether nothing is asked for ahead of one row.
    row_unasked: bool,
    pub(super) sites: Sites,
}

impl Next {
    /// Of the contraction that comes next.
    pub(super) fn new(contract: &Contract) -> Self {
        let part = contract.first_part();
        Self {
            weight: part.weight,
            n: part.n,
            strip: contract.cut.columns,
            row_unasked: contract.shares.is_some(),
            sites: contract.sites.clone(),
        }
    }

    /// Where a thread begins in a step of one block of rows; in one of more, most threads begin near it.
    pub(super) fn stream(&self, ctx: &Context<'_>, thread: usize) -> Stream {
        let unasked = self.row_unasked && ctx.rows(self.sites.rows) == 1;
        match thread * self.strip {
            column if column < self.n && !unasked => {
                let columns = self.strip.min(self.n - column);
                Stream::new(ctx, self.weight, (column, columns))
            }
            _ => Stream::NONE,
        }
    }
}
