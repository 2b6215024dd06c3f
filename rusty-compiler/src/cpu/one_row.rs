//! One row times a contraction where cores read long runs of memory ahead on their own.
//!
//! Where weights are rows of floats, or panels of codes that are narrower than bytes, nothing is asked for, and a thread multiplies the
//! [pieces](super::shares) that it takes in two streams side by side: the two parts that a tail reads together (gate and up), if they
//! are panels, or the halves of a piece. Where codes are bytes one stream is faster, and [a little ahead](ASKED) of its use memory is
//! asked for. All was found by trying on a Zen 4 and is not explained. With the register file of AVX2 bytes are not multiplied so: on a
//! Zen 3 they come faster in two streams that are asked for, as on other cores.

use super::context::{Context, Scratch};
use super::contract::{Bundle, Contract, PART_TILE, part_tile};
use super::deltas::injection::{Tile, expect_expand};
use super::filled::Filled;
use super::forms;
use super::kind::Width;
use super::panel::GROUP;
use super::prefetch::{Ahead, Ask};
use super::row_panels::RowPanels;
use super::row_tiles::Extent;
use super::shares::{Piece, Shares};
use super::simd::{LANES, Level};
use super::tile::Panel;
use super::weights::Matrix;

/// How a part's weights lie.
#[derive(Clone, Copy)]
pub(super) enum RowPart {
    /// As panels, of which this is the first.
    Panels(Panel),
    /// As rows of floats.
    Rows,
}

impl Contract {
    /// How the weights of each part lie; none where some part has not become panels.
    pub(super) fn row_parts(&self, ctx: &Context<'_>) -> Option<Vec<RowPart>> {
        let parts = self.parts.iter();
        let parts = parts.map(|part| match ctx.weights.matrix_of(part.weight)? {
            Matrix::Panels { layout, offset } => {
                let at = ctx.weights.panels.ptr().wrapping_add(*offset);
                let first = Panel::new(layout, at, part.start, std::ptr::null(), None);
                Some(RowPart::Panels(first))
            }
            Matrix::Float { .. } | Matrix::Short(_) => Some(RowPart::Rows),
            Matrix::Stored { .. } | Matrix::Late(_) => None,
        });
        parts.collect()
    }

    /// Runs a thread's share of a step of one row.
    ///
    /// # Safety
    /// As for [`Contract::run`]; the parts' weights lie so.
    pub(super) unsafe fn run_row(
        &self,
        ctx: &Context<'_>,
        thread: usize,
        scratch: &mut Scratch,
        filled: &Filled<'_>,
        (shares, parts): (&Shares, &[RowPart]),
    ) {
        if ctx.adapted {
            self.await_reduce(ctx, thread, shares.each(), &mut scratch.ahead);
        }
        while let Some(units) = shares.take(ctx.tallies, thread, self.counter as u32) {
            for piece in shares.pieces(units) {
                // SAFETY: each piece is taken by one thread.
                unsafe { self.piece(ctx, scratch, filled, parts, piece) }
            }
        }
    }

    unsafe fn piece(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        filled: &Filled<'_>,
        parts: &[RowPart],
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
        // SAFETY: the caller's duty.
        unsafe {
            self.products(ctx, scratch, filled, parts, (piece, tile));
            if !filled.groups.is_empty() {
                ctx.barrier.await_arrivals(&ctx.counters[self.counter + 1]);
                for (i, &p) in bundle.parts.iter().enumerate() {
                    let out = part_tile(scratch.tile.floats(), i);
                    self.expand(ctx, &filled.groups, p, tile, out);
                }
            }
            self.tails(ctx, scratch, bundle, tile);
        }
    }

    /// Multiplies a piece's columns of each part.
    unsafe fn products(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        filled: &Filled<'_>,
        parts: &[RowPart],
        (piece, tile): (Piece, Tile),
    ) {
        let bundle = &self.bundles[piece.bundle];
        // What the next kernel reads is asked for along all pieces, in the first product of each.
        let mut work = piece.columns.div_ceil(GROUP);
        let mut expect = |ahead: &mut Ahead, multiplied: &[usize], steps: usize| {
            if ctx.adapted {
                for &p in multiplied {
                    expect_expand(&filled.groups, p, tile, ahead);
                }
                ahead.start_product(steps, std::mem::take(&mut work));
            }
        };
        let products = scratch.tile.floats();
        let (level, x) = (ctx.level, |p: usize| (filled.of(p), 0));
        if let Some(pair) = pair(level, filled, bundle, parts, piece) {
            let (x, ahead) = (x(bundle.parts[0]), &mut scratch.ahead);
            expect(ahead, &bundle.parts, pair.steps());
            // SAFETY: the piece's panels and the row are whole, and the tile holds a piece of each part.
            unsafe { forms::multiply_row(level, pair, x, products, ahead) };
            return ahead.end_product();
        }
        for (i, &p) in bundle.parts.iter().enumerate() {
            let out = part_tile(products, i);
            match parts[p] {
                RowPart::Panels(first) => {
                    let (panels, ahead) = (streams_of(level, first, piece), &mut scratch.ahead);
                    expect(ahead, &[p], panels.steps());
                    // SAFETY: as above.
                    unsafe { forms::multiply_row(level, panels, x(p), out, ahead) };
                }
                RowPart::Rows => {
                    let ask = Ask::LeftToCores;
                    expect(&mut scratch.ahead, &[p], self.steps(ctx, p, &tile, ask));
                    let e = Extent {
                        first: 0,
                        rows: 1,
                        columns: piece.columns,
                        out,
                        stride: piece.columns,
                    };
                    // SAFETY: as above.
                    unsafe {
                        self.parts[p].rows(ctx, scratch, filled.of(p), (e, piece.column), ask);
                    }
                }
            }
            scratch.ahead.end_product();
        }
    }
}

/// How far ahead of its use memory is asked for where codes are bytes.
const ASKED: usize = 2560;

/// Whether panels like this one are read in two streams that ask for nothing, which registers have to hold.
fn two_streams(level: Level, panel: &Panel) -> bool {
    level.row_panels() > 1 && panel.kind.width != Width::W8
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
    parts: &[RowPart],
    piece: Piece,
) -> Option<RowPanels> {
    let [a, b] = bundle.parts[..] else {
        return None;
    };
    let (RowPart::Panels(first), RowPart::Panels(second)) = (parts[a], parts[b]) else {
        return None;
    };
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
