//! One row times a contraction where cores read long runs of memory ahead on their own.
//!
//! Where codes are narrower than bytes nothing is asked for, and a thread multiplies the [pieces](super::shares) that it takes with
//! two streams of panels side by side: the two parts that a tail reads together (gate and up), or the halves of a piece. Where they
//! are bytes one stream is faster, and [a little ahead](ASKED) of its use memory is asked for. Both were found by trying on a Zen 4 and
//! are not explained.

use super::context::{Context, Scratch};
use super::contract::{Bundle, Contract, PART_TILE, part_tile};
use super::deltas::injection::{Tile, expect_expand};
use super::filled::Filled;
use super::forms;
use super::kind::Width;
use super::panel::GROUP;
use super::row_panels::RowPanels;
use super::shares::{Piece, Shares};
use super::simd::{LANES, Level};
use super::tile::Panel;
use super::weights::Matrix;
use std::ops::Range;

impl Contract {
    /// The first panel of each part; none where some part has not become panels.
    pub(super) fn first_panels(&self, ctx: &Context<'_>) -> Option<Vec<Panel>> {
        let parts = self.parts.iter();
        let first = parts.map(|part| match ctx.weights.matrix_of(part.weight)? {
            Matrix::Panels { layout, offset } => {
                let at = ctx.weights.panels.ptr().wrapping_add(*offset);
                Some(Panel::new(layout, at, part.start, std::ptr::null(), None))
            }
            _ => None,
        });
        first.collect()
    }

    /// Runs a thread's share of a step of one row.
    ///
    /// # Safety
    /// As for [`Contract::run`]; the parts' panels are these.
    pub(super) unsafe fn run_row(
        &self,
        ctx: &Context<'_>,
        thread: usize,
        scratch: &mut Scratch,
        filled: &Filled<'_>,
        (shares, panels): (&Shares, &[Panel]),
    ) {
        if ctx.adapted {
            self.await_reduce(ctx, thread, shares.each(), &mut scratch.ahead);
        }
        while let Some(units) = shares.take(ctx.tallies, thread, self.counter as u32) {
            for piece in shares.pieces(units) {
                // SAFETY: each piece is taken by one thread.
                unsafe { self.piece(ctx, scratch, filled, panels, piece) }
            }
        }
    }

    unsafe fn piece(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        filled: &Filled<'_>,
        panels: &[Panel],
        piece: Piece,
    ) {
        let bundle = &self.bundles[piece.bundle];
        let tile = Tile {
            first: 0,
            rows: 1,
            column: piece.column,
            columns: piece.columns,
            stride: piece.columns,
        };
        let products = scratch.tile.floats();
        // What the next kernel reads is asked for along all pieces, in the first product of each.
        let mut work = piece.columns.div_ceil(GROUP);
        let mut multiply = |parts: Range<usize>, row: RowPanels| {
            let (out, x) = (
                part_tile(products, parts.start),
                filled.of(bundle.parts[parts.start]),
            );
            let ahead = &mut scratch.ahead;
            if ctx.adapted {
                for &p in &bundle.parts[parts] {
                    expect_expand(&filled.groups, p, tile, ahead);
                }
                ahead.start_product(row.steps(), std::mem::take(&mut work));
            }
            // SAFETY: the piece's panels and the row are whole, and the tile holds a piece of each part.
            unsafe { forms::multiply_row(ctx.level, row, (x, 0), out, ahead) };
            ahead.end_product();
        };
        match pair(ctx.level, filled, bundle, panels, piece) {
            Some(pair) => multiply(0..2, pair),
            None => {
                for (i, &p) in bundle.parts.iter().enumerate() {
                    multiply(i..i + 1, streams_of(ctx.level, panels[p], piece));
                }
            }
        }
        // SAFETY: the caller's duty.
        unsafe {
            if !filled.groups.is_empty() {
                ctx.barrier.await_arrivals(&ctx.counters[self.counter + 1]);
                for (i, &p) in bundle.parts.iter().enumerate() {
                    self.expand(ctx, &filled.groups, p, tile, part_tile(products, i));
                }
            }
            self.tails(ctx, scratch, bundle, tile);
        }
    }
}

/// How far ahead of its use memory is asked for where codes are bytes.
const ASKED: usize = 2560;

/// Whether panels like this one are read in two streams that ask for nothing, which registers have to hold.
fn two_streams(level: Level, panel: &Panel) -> bool {
    level.holds_streams() && panel.kind.width != Width::W8
}

/// A piece's panels of a part in two streams, each half of them, or in one; `first` is the part's first one.
fn streams_of(level: Level, first: Panel, piece: Piece) -> RowPanels {
    let (first, count) = (of_piece(first, piece), panels_of(piece));
    if two_streams(level, &first) && count.is_multiple_of(2) {
        return RowPanels::new(first, count, 2);
    }
    let asked = match first.kind.width {
        Width::W8 => first.asking(first.at.wrapping_add(ASKED)),
        _ => first,
    };
    RowPanels::new(asked, count, 1)
}

/// A piece's panels of both parts of a bundle, each a stream, where they are panels of one layout that multiply one input.
fn pair(
    level: Level,
    filled: &Filled<'_>,
    bundle: &Bundle,
    panels: &[Panel],
    piece: Piece,
) -> Option<RowPanels> {
    let [a, b] = bundle.parts[..] else {
        return None;
    };
    let (first, second) = (panels[a], panels[b]);
    let alike = first.is_like(&second) && filled.is_plain(a) && filled.is_plain(b);
    (two_streams(level, &first) && alike).then(|| {
        let apart = second.at.addr().wrapping_sub(first.at.addr());
        RowPanels::pair(of_piece(first, piece), panels_of(piece), (apart, PART_TILE))
    })
}

fn panels_of(piece: Piece) -> usize {
    piece.columns.div_ceil(LANES)
}

/// A piece's first panel, of a part's first one.
fn of_piece(first: Panel, piece: Piece) -> Panel {
    first.moved(piece.column / LANES * first.bytes, 0)
}
