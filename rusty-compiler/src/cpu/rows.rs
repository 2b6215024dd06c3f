//! Kernels over rows without a product: maps, gathers, row selection.

use super::context::{Context, RowSet, Scratch, TailCode, ValueAt, value_at};
use super::weights::Weights;
use crate::plan::{Anchor, Kernel, Operand, Plan};
use crate::slots::RowChange;
use crate::{Error, Result};
use rusty_graph::WeightId;

/// Lanes of a row that a thread takes at a time where rows are few.
const CHUNK_LANES: usize = 512;

enum Source {
    Map,
    Gather { table: WeightId, width: usize },
    Select { x: ValueAt },
}

/// A map, gather or row selection.
pub(super) struct Rows {
    rows: RowSet,
    source: Source,
    tails: Vec<TailCode>,
}

pub(super) fn invalid(kernel: &Kernel, reason: &str) -> Error {
    Error::Invalid {
        pass: "bind",
        kernel: kernel.name.clone(),
        reason: reason.into(),
    }
}

pub(super) fn operand(plan: &Plan, kernel: &Kernel, x: u16) -> Result<ValueAt> {
    match kernel.operands.get(x as usize) {
        Some(Operand::Value(v)) => Ok(value_at(plan, *v)),
        _ => Err(invalid(kernel, "its operand is not an activation")),
    }
}

pub(super) fn tails(plan: &Plan, kernel: &Kernel, weights: &Weights) -> Result<Vec<TailCode>> {
    let tails = kernel.tails.iter();
    tails
        .map(|t| TailCode::new(plan, kernel, t, weights))
        .collect()
}

/// The embedding of a row's token, as the row's adapter has it; `change` is room for a row.
fn embedding(
    ctx: &Context<'_>,
    table: WeightId,
    row: usize,
    lanes: &mut [f32],
    change: &mut [f32],
) {
    let token = ctx.step.tokens[row];
    let slot = ctx.slots.data(ctx.step.slots[row]);
    let changed = match slot.and_then(|s| s.embedding.as_ref()) {
        Some(e) => e.row(token, ctx.vocab, change),
        None => RowChange::Kept,
    };
    if changed == RowChange::Replaced {
        lanes.copy_from_slice(change);
        return;
    }
    ctx.weights.gather(table, token as usize, lanes);
    if changed == RowChange::Added {
        lanes.iter_mut().zip(change).for_each(|(l, c)| *l += *c);
    }
}

impl Rows {
    /// Resolves a kernel.
    pub(super) fn new(plan: &Plan, kernel: &Kernel, weights: &Weights) -> Result<Self> {
        let source = match &kernel.anchor {
            Anchor::Map => Source::Map,
            Anchor::Gather { table, width } => {
                if !weights.has_table(*table) {
                    return Err(invalid(kernel, "its table is not bound"));
                }
                Source::Gather {
                    table: *table,
                    width: *width as usize,
                }
            }
            Anchor::SelectRows { x } => Source::Select {
                x: operand(plan, kernel, *x)?,
            },
            _ => return Err(invalid(kernel, "is not a kernel over rows")),
        };
        Ok(Self {
            rows: RowSet::of(plan, kernel)?,
            source,
            tails: tails(plan, kernel, weights)?,
        })
    }

    /// Instructions of the longest body and lanes of the widest.
    pub(super) fn register_need(&self) -> (usize, usize) {
        let ops = self
            .tails
            .iter()
            .map(|t| t.program.len())
            .max()
            .unwrap_or(0);
        (ops, self.tails.iter().map(|t| t.width).max().unwrap_or(0))
    }

    /// Values of a gathered row and of what an adapter makes of it.
    pub(super) fn row_words(&self) -> usize {
        match self.source {
            Source::Gather { width, .. } => 2 * width,
            _ => 0,
        }
    }

    /// Runs this thread's share.
    ///
    /// # Safety
    /// All threads of the pool call it with the same context; the plan is verified and bound.
    pub(super) unsafe fn run(&self, ctx: &Context<'_>, thread: usize, scratch: &mut Scratch) {
        let rows = ctx.rows(self.rows);
        // SAFETY: each row, or each range of a row's lanes, is computed by one thread.
        unsafe {
            if let Source::Map = self.source
                && rows < ctx.threads
            {
                self.map_lanes(ctx, thread, scratch, rows);
                return;
            }
            for row in rows * thread / ctx.threads..rows * (thread + 1) / ctx.threads {
                let result = [self.result(ctx, scratch, row)];
                for tail in &self.tails {
                    ctx.tail(tail, row, 0, tail.width, &result, &mut scratch.regs);
                }
            }
        }
    }

    unsafe fn result(&self, ctx: &Context<'_>, scratch: &mut Scratch, row: usize) -> *const f32 {
        match &self.source {
            Source::Map => std::ptr::null(),
            Source::Select { x } => ctx.value_row(*x, ctx.selected[row] as usize),
            Source::Gather { table, width } => {
                let out = scratch.tile.floats();
                let row = ctx.token_row(self.rows, row);
                // SAFETY: the tile holds two gathered rows.
                let lanes = unsafe { std::slice::from_raw_parts_mut(out, 2 * width) };
                let (lanes, change) = lanes.split_at_mut(*width);
                embedding(ctx, *table, row, lanes, change);
                out
            }
        }
    }

    /// A few rows, cut into ranges of lanes that can be computed alone.
    unsafe fn map_lanes(
        &self,
        ctx: &Context<'_>,
        thread: usize,
        scratch: &mut Scratch,
        rows: usize,
    ) {
        let mut piece = 0;
        for row in 0..rows {
            for tail in &self.tails {
                let unit = tail.program.unit();
                let step = unit * (CHUNK_LANES / unit).max(1);
                for first in (0..tail.width).step_by(step) {
                    if piece % ctx.threads == thread {
                        let count = step.min(tail.width - first);
                        // SAFETY: the caller's duty.
                        unsafe { ctx.tail(tail, row, first, count, &[], &mut scratch.regs) };
                    }
                    piece += 1;
                }
            }
        }
    }
}
