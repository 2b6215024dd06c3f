//! The choice of experts, see [`RouteSpec::choose`].

use super::context::{Context, RowSet, ValueAt};
use super::experts::stored;
use super::rows::{invalid, operand};
use crate::Result;
use crate::plan::{Anchor, Kernel, Operand, Plan};
use rusty_graph::{RouteSpec, WeightId};

/// The choice of experts, ready to run.
pub(super) struct Route {
    rows: RowSet,
    x: ValueAt,
    bias: Option<WeightId>,
    out: Vec<ValueAt>,
    spec: RouteSpec,
}

impl Route {
    /// Resolves a kernel.
    pub(super) fn new(plan: &Plan, kernel: &Kernel) -> Result<Self> {
        let Anchor::Route { x, bias, spec } = kernel.anchor else {
            return Err(invalid(kernel, "is no routing"));
        };
        let vector = |operand: u16| match kernel.operands.get(operand as usize) {
            Some(Operand::Vector(weight)) => Ok(*weight),
            _ => Err(invalid(kernel, "its bias is no vector")),
        };
        Ok(Self {
            rows: RowSet::of(plan, kernel)?,
            x: operand(plan, kernel, x)?,
            bias: bias.map(vector).transpose()?,
            out: stored(plan, kernel),
            spec,
        })
    }

    /// Runs this thread's share.
    ///
    /// # Safety
    /// All threads of the pool call it with the same context; the plan is verified and bound.
    pub(super) unsafe fn run(&self, ctx: &Context<'_>, thread: usize) {
        let rows = ctx.rows(self.rows);
        let bias = self.bias.and_then(|bias| ctx.weights.vector_of(bias));
        for row in rows * thread / ctx.threads..rows * (thread + 1) / ctx.threads {
            for out in &self.out {
                // SAFETY: rows lie in the arena as the plan says; each is written by one thread.
                let (logits, out) = unsafe {
                    (
                        std::slice::from_raw_parts(ctx.value_row(self.x, row), self.x.width),
                        std::slice::from_raw_parts_mut(ctx.value_row(*out, row), out.width),
                    )
                };
                self.spec.choose(logits, bias, out);
            }
        }
    }
}
