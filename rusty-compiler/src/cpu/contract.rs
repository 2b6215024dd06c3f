//! Contractions: the prologue makes the input rows, tiles multiply them, tails consume each tile while hot.
//!
//! The output columns are cut into [*strips*](super::strips), but for [one row](super::one_row) on some cores. Parts that
//! one tail reads together (gate and up) share their strips. A piece of work is one strip over one block of rows; threads
//! draw pieces in order, so that at a decode step they stream neighbouring weights, which the memory system serves better
//! than far ones. All blocks of rows go over a strip before the next one, so that weights come from memory once.

use super::context::{Context, RowSet, Scratch, TailCode, program};
use super::deltas::injection::{Sites, Tile, expect_expand};
use super::filled::Filled;
use super::prefetch::Ask;
use super::product::PartCode;
use super::quantize::InputForms;
use super::row_tiles::Extent;
use super::shares::{Shares, WIDEST};
use super::stream::{Next, Stream};
use super::strips::{Cut, STRIP, Width};
use super::weights::{Matrix, Weights};
use crate::plan::{Anchor, Kernel, Operand, Plan, PlanValueId, Sink, Unit};
use crate::{Error, Result};

/// Rows of a block, whole tiles of all sizes: their inputs and a strip of weights fit the second-level cache together.
pub(super) const BLOCK_ROWS: usize = 96;
/// The same for single-precision inputs.
const FLOAT_BLOCK_ROWS: usize = 24;

/// Whether some kernel chooses experts by what this one makes.
fn routes(plan: &Plan, kernel: &Kernel) -> bool {
    let made = |value: &PlanValueId| {
        let mut tails = kernel.tails.iter();
        tails.any(|tail| tail.sink == Sink::Value(*value))
    };
    plan.kernels.iter().any(|k| match k.anchor {
        Anchor::Route { x, .. } => match k.operands.get(x as usize) {
            Some(Operand::Value(value)) => made(value),
            _ => false,
        },
        _ => false,
    })
}

/// Parts and tails that belong together.
pub(super) struct Bundle {
    pub(super) parts: Vec<usize>,
    tails: Vec<TailCode>,
    width: usize,
}

/// A contraction, ready to run.
pub(super) struct Contract {
    pub(super) rows: RowSet,
    /// Input width.
    pub(super) k: usize,
    pub(super) prologue: super::body::Program,
    pub(super) parts: Vec<PartCode>,
    pub(super) bundles: Vec<Bundle>,
    pub(super) cut: Cut,
    /// How columns are shared out for one row, where cores read its weights ahead on their own.
    pub(super) shares: Option<Shares>,
    pub(super) forms: InputForms,
    /// Where pieces are drawn; the counter behind it tells how many threads have their ranks of `A x`.
    pub(super) counter: usize,
    pub(super) sites: Sites,
    /// The contraction that follows.
    pub(super) next: Option<Next>,
}

impl Contract {
    /// Resolves a kernel; it owns `counter` and the counter behind it.
    pub(super) fn new(
        plan: &Plan,
        kernel: &Kernel,
        weights: &Weights,
        threads: usize,
        counter: usize,
    ) -> Result<Self> {
        let Anchor::Contract { k, parts } = &kernel.anchor else {
            return Err(unbound(kernel));
        };
        let mut forms = InputForms::default();
        // A rounded score may choose another expert.
        let routes = routes(plan, kernel);
        let mut codes = Vec::with_capacity(parts.len());
        for part in parts {
            let matrix = weights
                .matrix_of(part.weight)
                .ok_or_else(|| unbound(kernel))?;
            let start = match matrix.kind() {
                Some(kind) => forms.add_panels(&kind).ok_or_else(|| unbound(kernel))?,
                None => {
                    forms.add_floats(!routes && weights.takes_brains(matrix));
                    0
                }
            };
            codes.push(PartCode {
                weight: part.weight,
                n: part.n as usize,
                start,
            });
        }
        let bundles = bundle(plan, kernel, weights)?;
        let rows = RowSet::of(plan, kernel)?;
        Ok(Self {
            rows,
            sites: Sites {
                rows,
                parts: parts.iter().map(|p| p.site).collect(),
            },
            next: None,
            k: *k as usize,
            prologue: program(plan, kernel, &kernel.prologue, weights)?,
            shares: shares_of_row(&codes, &bundles, weights, threads),
            parts: codes,
            cut: Cut::new(&widths(&bundles), threads),
            bundles,
            forms,
            counter,
        })
    }

    /// Instructions of the longest body and lanes of the widest.
    pub(super) fn register_need(&self) -> (usize, usize) {
        let tails = self.bundles.iter().flat_map(|b| &b.tails);
        let ops = tails.map(|t| t.program.len()).max().unwrap_or(0);
        (ops.max(self.prologue.len()), self.k.max(STRIP))
    }

    /// The part that is multiplied first.
    pub(super) fn first_part(&self) -> &PartCode {
        &self.parts[self.bundles[0].parts[0]]
    }

    /// Runs this thread's share.
    ///
    /// # Safety
    /// All threads of the pool call it with the same context; the plan is verified and bound.
    pub(super) unsafe fn run(&self, ctx: &Context<'_>, thread: usize, scratch: &mut Scratch) {
        let rows = ctx.rows(self.rows);
        if rows == 0 {
            return;
        }
        // SAFETY: the caller's duty.
        let filled = unsafe { self.fill(ctx, thread, scratch, rows) };
        if let Some(shares) = self.shares.as_ref().filter(|_| rows == 1)
            && let Some(parts) = self.row_parts(ctx)
        {
            // SAFETY: the caller's duty.
            return unsafe { self.run_row(ctx, thread, scratch, &filled, (shares, &parts)) };
        }
        let block_rows = if self.forms.floats {
            FLOAT_BLOCK_ROWS
        } else {
            BLOCK_ROWS
        };
        let blocks = rows.div_ceil(block_rows);
        let cut = &self.cut;
        let pieces = blocks * cut.strips;
        if ctx.adapted {
            let products = blocks * cut.products / ctx.threads;
            self.await_reduce(ctx, thread, products, &mut scratch.ahead);
        }
        let mut piece = thread;
        while piece < pieces {
            let first = piece % blocks * block_rows;
            let (bundle, column, columns) = cut.locate(piece / blocks);
            let bundle = &self.bundles[bundle];
            let tile = Tile {
                first,
                rows: block_rows.min(rows - first),
                column,
                columns,
                stride: cut.columns,
            };
            let draw = || {
                let piece = ctx.draw(self.counter);
                (piece, self.begin(ctx, thread, piece / blocks))
            };
            // SAFETY: each piece is drawn by one thread.
            piece = unsafe { self.strip(ctx, scratch, &filled, bundle, tile, draw) };
        }
    }

    /// Where a strip's weights begin; behind the last strip, where this thread's of the next kernel do.
    fn begin(&self, ctx: &Context<'_>, thread: usize, strip: usize) -> Stream {
        if strip < self.cut.strips {
            let (bundle, column, columns) = self.cut.locate(strip);
            return self.parts[self.bundles[bundle].parts[0]].stream(ctx, (column, columns));
        }
        let next = self.next.as_ref();
        next.map_or(Stream::NONE, |next| next.stream(ctx, thread))
    }

    /// A strip of a bundle over a block of rows; `draw` gives the next piece of work, which is returned, and where its
    /// weights begin.
    unsafe fn strip(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        filled: &Filled<'_>,
        bundle: &Bundle,
        tile: Tile,
        draw: impl Fn() -> (usize, Stream),
    ) -> usize {
        let mut drawn = None;
        let products = scratch.tile.floats();
        // SAFETY: strips and rows are inside the matrices and the tile.
        unsafe {
            for (i, &p) in bundle.parts.iter().enumerate() {
                let x = filled.of(p);
                let out = part_tile(products, i);
                if ctx.adapted {
                    expect_expand(&filled.groups, p, tile, &mut scratch.ahead);
                    scratch
                        .ahead
                        .start_product(self.steps(ctx, p, &tile, Ask::Along), 1);
                }
                let next = || match bundle.parts.get(i + 1) {
                    Some(next) => self.parts[*next].stream(ctx, (tile.column, tile.columns)),
                    None => {
                        let (piece, next) = draw();
                        drawn = Some(piece);
                        next
                    }
                };
                let e = Extent {
                    first: tile.first,
                    rows: tile.rows,
                    columns: tile.columns,
                    out,
                    stride: tile.stride,
                };
                self.parts[p].product(ctx, scratch, x, (e, tile.column), next);
                scratch.ahead.end_product();
                if !filled.groups.is_empty() {
                    ctx.barrier.await_arrivals(&ctx.counters[self.counter + 1]);
                    self.expand(ctx, &filled.groups, p, tile, out);
                }
            }
            self.tails(ctx, scratch, bundle, tile);
        }
        drawn.unwrap_or_else(|| draw().0)
    }

    /// What becomes of a strip's products, as many columns at a time as registers hold.
    pub(super) unsafe fn tails(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        bundle: &Bundle,
        tile: Tile,
    ) {
        let products = scratch.tile.floats();
        let mut results = std::mem::take(&mut scratch.results);
        for row in 0..tile.rows {
            for first in (0..tile.columns).step_by(STRIP) {
                let (column, columns) = (tile.column + first, STRIP.min(tile.columns - first));
                for (i, &p) in bundle.parts.iter().enumerate() {
                    results[p] = part_tile(products, i).wrapping_add(row * tile.stride + first);
                }
                for tail in &bundle.tails {
                    let regs = &mut scratch.regs;
                    // SAFETY: the caller's duty.
                    unsafe { ctx.tail(tail, tile.first + row, column, columns, &results, regs) };
                }
            }
        }
        scratch.results = results;
    }
}

/// Values of a tile that belong to one part.
pub(super) const PART_TILE: usize = BLOCK_ROWS * STRIP;
const _: () = assert!(WIDEST <= PART_TILE, "a piece of one row is a part's");

/// Where the products of a bundle's part `i` go.
pub(super) fn part_tile(tile: *mut f32, i: usize) -> *mut f32 {
    tile.wrapping_add(i * PART_TILE)
}

fn widths(bundles: &[Bundle]) -> Vec<Width> {
    let width = |bundle: &Bundle| Width {
        columns: bundle.width,
        parts: bundle.parts.len(),
    };
    bundles.iter().map(width).collect()
}

/// Columns shared out for one row, where cores read all parts ahead on their own.
fn shares_of_row(
    parts: &[PartCode],
    bundles: &[Bundle],
    weights: &Weights,
    threads: usize,
) -> Option<Shares> {
    let matrices = parts.iter().map(|part| weights.matrix_of(part.weight));
    let matrices: Vec<&Matrix> = matrices.collect::<Option<_>>()?;
    let unasked = matrices.iter().all(|matrix| weights.reads_ahead(matrix));
    let of_bundle = |bundle: &Bundle| {
        bundle
            .parts
            .iter()
            .map(|p| matrices[*p].column_bytes())
            .sum()
    };
    let column_bytes = bundles.iter().map(of_bundle).max().unwrap_or(0);
    let shares = || Shares::new(&widths(bundles), column_bytes, threads);
    unasked.then(shares).flatten()
}

fn unbound(kernel: &Kernel) -> Error {
    Error::Invalid {
        pass: "bind",
        kernel: kernel.name.clone(),
        reason: "is not a contraction over bound weights".into(),
    }
}

/// The units of a contraction with their tails resolved, in the order of the units' last tails.
fn bundle(plan: &Plan, kernel: &Kernel, weights: &Weights) -> Result<Vec<Bundle>> {
    let mut units = kernel.units();
    units.retain(|u| !u.tails.is_empty());
    units.sort_by_key(|u| u.tails.last().copied());
    let bundle = |unit: Unit| -> Result<Bundle> {
        let tails = unit.tails.iter().map(|t| &kernel.tails[*t]);
        let tails = tails.map(|t| TailCode::new(plan, kernel, t, weights));
        let tails = tails.collect::<Result<Vec<_>>>()?;
        Ok(Bundle {
            width: tails.last().map_or(0, |t| t.width),
            parts: unit.parts,
            tails,
        })
    };
    units.into_iter().map(bundle).collect()
}
