//! One tile of a product: weights times inputs, by how the weights lie.

use super::brain_tile::{self, BrainRows, Plain};
use super::context::{Context, Scratch};
use super::contract::Contract;
use super::deltas::injection::Tile;
use super::float::{self, FloatRows};
use super::forms;
use super::prefetch::Ask;
use super::quantize::InputRows;
use super::row_panels::RowPanels;
use super::row_tiles::{Extent, ROW_STREAMS, UNASKED_STREAMS};
use super::short_rows::{ShortRows, fits};
use super::short_tile::{self, Short};
use super::simd::LANES;
use super::stream::{Stream, streams};
use super::tile::{self, Panel, TileRegisters};
use super::weights::Matrix;
use rusty_backend::UnifiedTensor;
use rusty_graph::WeightId;

impl Contract {
    /// Steps of a product's inner loops, about; `ask` is of rows of floats.
    pub(super) fn steps(&self, ctx: &Context<'_>, part: usize, tile: &Tile, ask: Ask) -> usize {
        let Tile { rows, columns, .. } = *tile;
        let Some(matrix) = ctx.weights.matrix_of(self.parts[part].weight) else {
            return 0;
        };
        match matrix {
            Matrix::Float { k, .. } | Matrix::Short(ShortRows { k, .. }) => {
                let brains = self.forms.brains && ctx.weights.takes_brains(matrix);
                let tile = match ask {
                    _ if brains && ctx.level.has_tiles() => LANES,
                    Ask::LeftToCores => UNASKED_STREAMS,
                    _ if rows == 1 => ROW_STREAMS,
                    _ => 4,
                };
                float::steps(*k, columns, tile)
            }
            _ => {
                let products =
                    columns.div_ceil(LANES) / streams(ctx.level, matrix, (rows, columns));
                let steps = |layout| products * tile::steps(ctx.level, layout, rows);
                matrix.layout().map_or(0, steps)
            }
        }
    }
}

/// A matrix that inputs are multiplied with.
pub(super) struct PartCode {
    pub(super) weight: WeightId,
    pub(super) n: usize,
    /// Position of its start among the inputs'.
    pub(super) start: usize,
}

impl PartCode {
    /// Its columns, `columns` from `column` on, in memory.
    pub(super) fn stream(&self, ctx: &Context<'_>, columns: (usize, usize)) -> Stream {
        Stream::new(ctx, self.weight, columns)
    }

    /// `out[r * stride + c] = x[first + r] . w[column + c]` for an extent's rows and columns. Before the last columns, or
    /// behind them, `next` is asked, once, what this thread reads after them.
    ///
    /// # Safety
    /// Rows and columns are inside inputs and matrix, and `out` holds the results.
    pub(super) unsafe fn product(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        x: InputRows,
        (e, column): (Extent, usize),
        next: impl FnOnce() -> Stream,
    ) {
        debug_assert!(column + e.columns <= self.n);
        if let Some(matrix) = ctx.weights.matrix_of(self.weight)
            && let Matrix::Panels { layout, offset } = matrix
            && let several @ 2.. = streams(ctx.level, matrix, (e.rows, e.columns))
        {
            let at = offset + column / LANES * layout.panel_bytes();
            let at = ctx.weights.panels.ptr().wrapping_add(at).cast_const();
            let panel = Panel::new(layout, at, self.start, std::ptr::null(), None);
            let panels = RowPanels::new(panel, e.columns.div_ceil(LANES), several);
            // SAFETY: the caller's duty.
            return unsafe { row(ctx, scratch, (x, e), panels, next) };
        }
        let begin = self.stream(ctx, (column, e.columns));
        let lead = begin.lead(e.columns);
        // SAFETY: the caller's duty.
        unsafe {
            if lead > 0 {
                let first = Extent { columns: lead, ..e };
                self.section(ctx, scratch, x, (first, column), begin.distance());
            }
            let rest = self.stream(ctx, (column + lead, e.columns - lead));
            let distance = rest.distance_to(next());
            if lead < e.columns {
                let rest = Extent {
                    columns: e.columns - lead,
                    out: e.out.wrapping_add(lead),
                    ..e
                };
                self.section(ctx, scratch, x, (rest, column + lead), distance);
            }
        }
    }

    /// Some columns of a product, from `column` on, while memory `distance` bytes further is asked for.
    unsafe fn section(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        x: InputRows,
        (e, column): (Extent, usize),
        distance: Option<isize>,
    ) {
        match ctx.weights.matrix_of(self.weight) {
            Some(Matrix::Float { .. } | Matrix::Short(_)) => {
                // SAFETY: the caller's duty.
                unsafe { self.rows(ctx, scratch, x, (e, column), Ask::Along) }
            }
            Some(matrix) => {
                // SAFETY: the caller's duty.
                unsafe { self.panels(ctx, scratch, x, matrix, (e, column), distance) }
            }
            None => {}
        }
    }

    /// Columns that are rows of floats, from `column` on.
    ///
    /// # Safety
    /// As for [`PartCode::product`].
    pub(super) unsafe fn rows(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        x: InputRows,
        (e, column): (Extent, usize),
        ask: Ask,
    ) {
        match ctx.weights.matrix_of(self.weight) {
            Some(Matrix::Float { bytes, kind, k }) if !x.brains.is_null() && fits(*kind, *k) => {
                let at = host(bytes).as_ptr().wrapping_add(column * 2 * k);
                let w = BrainRows::Plain(Plain { at, k: *k, ask });
                // SAFETY: the caller's duty; inputs are brain floats where the machine multiplies such.
                unsafe { brain_tile::multiply(ctx.level, w, x, e, &mut scratch.ahead) }
            }
            Some(Matrix::Float { bytes, kind, k }) => {
                let at = host(bytes).as_ptr();
                let w = FloatRows {
                    kind: *kind,
                    at: at.wrapping_add(column * kind.row_bytes(*k)),
                    k: *k,
                    ask,
                };
                // SAFETY: the caller's duty.
                unsafe { float::multiply(ctx.level, w, x, e, &mut scratch.ahead) }
            }
            Some(Matrix::Short(matrix)) => {
                let w = Short {
                    matrix,
                    row: column,
                    at: matrix.row(ctx.weights.panels.ptr(), column),
                    words: scratch.panel.ptr(),
                    ask,
                };
                let ahead = &mut scratch.ahead;
                // SAFETY: the caller's duty; inputs are brain floats where the machine multiplies such.
                unsafe {
                    match x.brains.is_null() {
                        true => short_tile::multiply(ctx.level, w, x, e, ahead),
                        false => {
                            let w = BrainRows::Short(w);
                            brain_tile::multiply(ctx.level, w, x, e, ahead);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// Columns of panels from `column` on.
    unsafe fn panels(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        x: InputRows,
        matrix: &Matrix,
        (e, column): (Extent, usize),
        distance: Option<isize>,
    ) {
        let Some(layout) = matrix.layout() else {
            return;
        };
        // Rows that are listed lie anywhere, and tiles take neighbours.
        let rows = if x.taken.is_null() { e.rows } else { 0 };
        let registers = TileRegisters::set_up(ctx.level, &layout.kind, rows);
        for panel in column / LANES..(column + e.columns).div_ceil(LANES) {
            let out = e.out.wrapping_add(panel * LANES).wrapping_sub(column);
            // SAFETY: the caller's duty; the thread's own panel has room for any.
            unsafe {
                let (at, next) = match matrix {
                    Matrix::Stored { bytes, .. } => {
                        let own = scratch.panel.ptr();
                        let packed = std::slice::from_raw_parts_mut(own, layout.panel_bytes());
                        layout.pack(host(bytes), panel, packed);
                        (own.cast_const(), None)
                    }
                    // A strip of an expert is one thread's.
                    Matrix::Late(late) => (late.panel(panel), distance),
                    Matrix::Panels { offset, .. } => {
                        let at = offset + panel * layout.panel_bytes();
                        (ctx.weights.panels.ptr().add(at).cast_const(), distance)
                    }
                    Matrix::Float { .. } | Matrix::Short(_) => return,
                };
                let next = next.map_or(std::ptr::null(), |d| at.wrapping_offset(d));
                let panel = Panel::new(layout, at, self.start, next, registers.as_ref());
                let ahead = &mut scratch.ahead;
                forms::multiply(ctx.level, panel, x, (e.first, e.rows), out, e.stride, ahead);
            }
        }
    }
}

/// The product of an extent's row with panels in several streams. All panels of each but the last ask for the one behind them,
/// and the last one for what `next` says.
unsafe fn row(
    ctx: &Context<'_>,
    scratch: &mut Scratch,
    (x, e): (InputRows, Extent),
    panels: RowPanels,
    next: impl FnOnce() -> Stream,
) {
    let ahead = &mut scratch.ahead;
    let mut multiply = |panels: RowPanels, column: usize| {
        let out = e.out.wrapping_add(column);
        // SAFETY: the caller's duty.
        unsafe { forms::multiply_row(ctx.level, panels, (x, e.first), out, ahead) }
    };
    let (others, last) = panels.split();
    multiply(others, 0);
    multiply(last.asking(next()), others.columns());
}

fn host(bytes: &UnifiedTensor) -> &[u8] {
    match bytes.host_bytes() {
        Some(bytes) => bytes,
        None => unreachable!("weights of the CPU lie in host memory"),
    }
}
