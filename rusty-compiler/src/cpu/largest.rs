//! The most likely token of each row: a reduction that all threads share.

use super::context::{Context, RowSet, SinkAt, ValueAt};
use super::rows::{invalid, operand};
use crate::plan::{Anchor, Kernel, Plan};
use crate::{Result, RowResult};

/// The largest lane of each row.
pub(super) struct Largest {
    rows: RowSet,
    x: ValueAt,
    out: Vec<ValueAt>,
}

impl Largest {
    /// Resolves a kernel.
    pub(super) fn new(plan: &Plan, kernel: &Kernel) -> Result<Self> {
        let Anchor::ArgMax { x } = kernel.anchor else {
            return Err(invalid(kernel, "is not an argmax"));
        };
        let out = kernel
            .tails
            .iter()
            .filter_map(|t| match SinkAt::new(plan, t.sink) {
                SinkAt::Value(v) => Some(v),
                _ => None,
            });
        Ok(Self {
            rows: RowSet::of(plan, kernel)?,
            x: operand(plan, kernel, x)?,
            out: out.collect(),
        })
    }

    /// Runs this thread's share: a range of lanes of every row, then, behind a barrier, some rows.
    ///
    /// # Safety
    /// As for [`Rows::run`].
    pub(super) unsafe fn run(&self, ctx: &Context<'_>, thread: usize) {
        let rows = ctx.rows(self.rows);
        if rows == 0 {
            return;
        }
        let share = |t: usize| self.x.width * t / ctx.threads;
        let partials: *mut (f32, u32) = ctx.partials.ptr().cast();
        // SAFETY: threads write their own entries and read the others' behind the barrier.
        unsafe {
            for row in 0..rows {
                let x = std::slice::from_raw_parts(ctx.value_row(self.x, row), self.x.width);
                *partials.add(row * ctx.threads + thread) =
                    largest(x, share(thread), share(thread + 1));
            }
            ctx.barrier.wait();
            for row in rows * thread / ctx.threads..rows * (thread + 1) / ctx.threads {
                let all = std::slice::from_raw_parts(partials.add(row * ctx.threads), ctx.threads);
                let mut best = all[0];
                for &p in &all[1..] {
                    if p.0 > best.0 {
                        best = p;
                    }
                }
                let pick = match best.0.is_finite() {
                    true => best.1,
                    false => RowResult::NO_TOKEN,
                };
                for out in &self.out {
                    *ctx.value_row(*out, row).cast::<u32>() = pick;
                }
            }
        }
    }
}

/// Largest lane of `x[from .. to]` and its index, the lowest among equals.
fn largest(x: &[f32], from: usize, to: usize) -> (f32, u32) {
    const WIDE: usize = 64;
    let mut best = (f32::NEG_INFINITY, from as u32);
    let mut at = from;
    // The maximum of a piece first, which vectorizes; its lanes only where it wins.
    while at < to {
        let piece = &x[at..(at + WIDE).min(to)];
        let top = piece
            .iter()
            .fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m });
        if top > best.0
            && let Some(i) = piece.iter().position(|v| *v == top)
        {
            best = (top, (at + i) as u32);
        }
        at += WIDE;
    }
    best
}
