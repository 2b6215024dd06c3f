//! Inputs of a contraction: the rows that its prologue makes, in the forms that its parts multiply, and what adapters add to them.

use super::body::{self, Lanes};
use super::context::{Context, Scratch};
use super::contract::Contract;
use super::deltas::injection::Group;
use super::quantize::{InputRows, fill_row};

/// Up to this many rows each thread makes all inputs itself, which costs less than meeting at a barrier.
pub(super) const PRIVATE_ROWS: usize = 2;

/// Inputs of a kernel: those of all parts, or each part's own where an adapter scales them.
pub(super) struct Filled<'a> {
    plain: InputRows,
    gained: Vec<Option<InputRows>>,
    /// Rows with the same adapter.
    pub(super) groups: Vec<Group<'a>>,
}

impl Filled<'_> {
    /// A part's own inputs, if it has such.
    fn own(&self, part: usize) -> Option<InputRows> {
        self.gained.get(part).copied().flatten()
    }

    /// Whether a part's inputs are those of all parts.
    pub(super) fn is_plain(&self, part: usize) -> bool {
        self.own(part).is_none()
    }

    /// A part's inputs.
    pub(super) fn of(&self, part: usize) -> InputRows {
        self.own(part).unwrap_or(self.plain)
    }
}

impl Contract {
    /// Makes them, this thread its rows or, where these are few, all.
    ///
    /// # Safety
    /// As for [`Contract::run`].
    pub(super) unsafe fn fill<'a>(
        &self,
        ctx: &Context<'a>,
        thread: usize,
        scratch: &mut Scratch,
        rows: usize,
    ) -> Filled<'a> {
        let mut filled = Filled {
            plain: ctx.inputs.rows(self.k, self.forms),
            gained: vec![],
            groups: match ctx.adapted {
                true => self.sites.groups(ctx),
                false => vec![],
            },
        };
        let adapted = !filled.groups.is_empty();
        // SAFETY: every row is filled by one thread, or into this thread's own memory.
        unsafe {
            let forms = self.forms.for_groups(&filled.groups);
            if adapted {
                filled.gained = self.gained(ctx, rows);
            }
            if rows <= PRIVATE_ROWS && filled.gained.iter().all(Option::is_none) {
                filled.plain = scratch.inputs.rows(self.k, self.forms);
                for row in 0..rows {
                    let x = self.input(ctx, scratch, row);
                    fill_row(ctx.level, filled.plain, row, x, self.k, forms);
                }
                if adapted {
                    self.reduce(ctx, thread, filled.plain, &filled.groups);
                }
                return filled;
            }
            for row in rows * thread / ctx.threads..rows * (thread + 1) / ctx.threads {
                let x = self.input(ctx, scratch, row);
                fill_row(ctx.level, filled.plain, row, x, self.k, forms);
                for (part, inputs) in filled.gained.iter().enumerate() {
                    if let Some(inputs) = inputs {
                        self.fill_gained(ctx, *inputs, part, row, x);
                    }
                }
            }
            ctx.barrier.wait();
            if adapted {
                self.reduce(ctx, thread, filled.plain, &filled.groups);
            }
        }
        filled
    }

    unsafe fn input(&self, ctx: &Context<'_>, scratch: &mut Scratch, row: usize) -> *const f32 {
        let lanes = Lanes {
            row,
            first: 0,
            count: self.k,
            results: &[],
            arena: ctx.arena,
            ropes: ctx.ropes,
        };
        // SAFETY: the prologue's lanes are `k`, by the verifier.
        unsafe { body::run(ctx.level, &self.prologue, lanes, &mut scratch.regs) }
    }
}
