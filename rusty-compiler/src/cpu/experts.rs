//! Products with the experts that each row takes.
//!
//! Rows are grouped by expert, so that an expert that several rows take is read once, and one that no row takes not at
//! all. A thread owns strips of output columns and goes through the experts in order: where products are summed, a row's
//! sum has one order whatever its neighbours take.

use super::context::{Context, RowSet, Scratch, SinkAt, ValueAt};
use super::contract::BLOCK_ROWS;
use super::deltas::injection;
use super::panel::GROUP;
use super::product::PartCode;
use super::quantize::{InputForms, InputRows, fill_row};
use super::row_tiles::Extent;
use super::rows::{invalid, operand};
use super::simd::LANES;
use super::stream::Stream;
use super::strips::STRIP;
use super::weights::Weights;
use crate::Result;
use crate::plan::{Anchor, Kernel, Operand, Plan};
use rusty_graph::{RouteSpec, SiteId, WeightId};

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

/// Where a kernel stores activations.
fn stored(plan: &Plan, kernel: &Kernel) -> Vec<ValueAt> {
    let sinks = kernel.tails.iter().map(|t| SinkAt::new(plan, t.sink));
    let values = sinks.filter_map(|s| match s {
        SinkAt::Value(v) => Some(v),
        _ => None,
    });
    values.collect()
}

/// The products, ready to run.
pub(super) struct Experts {
    pub(super) rows: RowSet,
    x: ValueAt,
    /// `None`: every row takes all, in order.
    routes: Option<ValueAt>,
    out: ValueAt,
    k: usize,
    n: usize,
    /// Products of a row.
    pub(super) used: usize,
    combine: bool,
    parts: Vec<PartCode>,
    /// The first expert's site; those of the others follow it.
    pub(super) sites: Option<SiteId>,
    pub(super) forms: InputForms,
    strip: usize,
    counter: usize,
}

/// The rows that take an expert.
pub(super) struct Group {
    pub(super) expert: usize,
    /// Range of the sorted pairs.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// What a step's routes say: pairs `row * used + place`, sorted by expert.
pub(super) struct Chosen {
    pub(super) pairs: Vec<u32>,
    /// The input row of each pair.
    taken: Vec<u32>,
    pub(super) groups: Vec<Group>,
}

/// The experts' matrices of `n` rows, and the forms of inputs that these are multiplied with; `None`: one is not bound.
fn codes(all: &[WeightId], n: usize, weights: &Weights) -> Option<(Vec<PartCode>, InputForms)> {
    let mut forms = InputForms::default();
    let mut parts = Vec::with_capacity(all.len());
    for &weight in all {
        let matrix = weights.matrix_of(weight)?;
        let start = match matrix.kind() {
            Some(kind) => forms.add_panels(&kind)?,
            None => {
                forms.add_floats(weights.takes_brains(matrix));
                0
            }
        };
        parts.push(PartCode { weight, n, start });
    }
    Some((parts, forms))
}

impl Experts {
    /// Resolves a kernel; it owns `counter`.
    pub(super) fn new(
        plan: &Plan,
        kernel: &Kernel,
        weights: &Weights,
        threads: usize,
        counter: usize,
    ) -> Result<Self> {
        let Anchor::Experts {
            x,
            routes,
            k,
            n,
            used,
            combine,
            weights: all,
            sites,
        } = &kernel.anchor
        else {
            return Err(invalid(kernel, "is no product with experts"));
        };
        let n = *n as usize;
        let unbound = || invalid(kernel, "is not over bound weights");
        let (parts, forms) = codes(all, n, weights).ok_or_else(unbound)?;
        let out = stored(plan, kernel);
        let [out] = out[..] else {
            return Err(invalid(kernel, "has more than one result"));
        };
        let strip = (n / (threads * 8))
            .next_multiple_of(LANES)
            .clamp(LANES, STRIP);
        Ok(Self {
            rows: RowSet::of(plan, kernel)?,
            x: operand(plan, kernel, *x)?,
            routes: routes
                .map(|routes| operand(plan, kernel, routes))
                .transpose()?,
            out,
            k: *k as usize,
            n,
            used: *used as usize,
            combine: *combine,
            sites: *sites,
            parts,
            forms,
            strip,
            counter,
        })
    }

    /// Width of inputs that would take as much room as those of a row.
    pub(super) fn input_width(&self) -> usize {
        // Each input row has some padding of its own.
        const PADDING: usize = 128;
        match self.each() {
            true => self.used * (self.k + PADDING),
            false => self.k,
        }
    }

    /// Whether every product has an input of its own.
    fn each(&self) -> bool {
        self.combine || self.routes.is_none()
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
        let mut inputs = ctx.inputs.rows(self.k, self.forms);
        let chosen = self.chosen(ctx, rows);
        let adapted = self.groups(ctx, &chosen);
        // SAFETY: each row is filled by one thread, each strip of the output written by the one that draws it.
        unsafe {
            let forms = self.forms.for_groups(&adapted);
            self.fill(ctx, thread, (inputs, forms), rows);
            inputs.taken = chosen.taken.as_ptr();
            ctx.barrier.wait();
            if !adapted.is_empty() {
                self.reduce(ctx, thread, inputs, &adapted);
                ctx.barrier.wait();
            }
            // Adapters' panels are of so many columns.
            let strip = match adapted.is_empty() {
                true => self.strip,
                false => self.strip.next_multiple_of(GROUP),
            };
            let mut column = thread * strip;
            while column < self.n {
                let columns = strip.min(self.n - column);
                if self.combine {
                    for row in 0..rows {
                        ctx.value_row(self.out, row)
                            .add(column)
                            .write_bytes(0, columns);
                    }
                }
                let draw = || ctx.draw(self.counter) * strip;
                let of = (column, columns, strip);
                column = self.multiply(ctx, scratch, (inputs, &chosen, &adapted), of, draw);
            }
        }
    }

    /// Some columns of all experts that are taken; `draw` gives where the next columns begin, which are returned.
    unsafe fn multiply(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        (inputs, chosen, adapted): (InputRows, &Chosen, &[injection::Group<'_>]),
        (column, columns, stride): (usize, usize, usize),
        draw: impl Fn() -> usize,
    ) -> usize {
        let mut drawn = self.n;
        for (g, group) in chosen.groups.iter().enumerate() {
            for block in (0..group.count).step_by(BLOCK_ROWS) {
                let count = BLOCK_ROWS.min(group.count - block);
                let e = Extent {
                    first: group.first + block,
                    rows: count,
                    columns,
                    out: scratch.tile.floats(),
                    stride,
                };
                let next = || {
                    if block + count < group.count {
                        // The same weights again.
                        return Stream::NONE;
                    }
                    if let Some(group) = chosen.groups.get(g + 1) {
                        return self.parts[group.expert].stream(ctx, (column, columns));
                    }
                    drawn = draw();
                    match drawn < self.n {
                        true => {
                            let columns = stride.min(self.n - drawn);
                            self.parts[chosen.groups[0].expert].stream(ctx, (drawn, columns))
                        }
                        false => Stream::NONE,
                    }
                };
                let part = &self.parts[group.expert];
                // SAFETY: the caller's duty; this thread drew the columns.
                unsafe {
                    part.product(ctx, scratch, inputs, (e, column), next);
                    self.expand(ctx, adapted, (e, column));
                    self.store(ctx, chosen, (e, column));
                }
            }
        }
        drawn
    }

    /// Fills this thread's share of the inputs of `rows` rows.
    unsafe fn fill(
        &self,
        ctx: &Context<'_>,
        thread: usize,
        (inputs, forms): (InputRows, InputForms),
        rows: usize,
    ) {
        let per_row = if self.each() { self.used } else { 1 };
        let all = rows * per_row;
        for row in all * thread / ctx.threads..all * (thread + 1) / ctx.threads {
            // SAFETY: the caller's duty.
            unsafe {
                let x = ctx
                    .value_row(self.x, row / per_row)
                    .add(row % per_row * self.k);
                fill_row(ctx.level, inputs, row, x, self.k, forms);
            }
        }
    }

    /// Groups the rows by the experts that they take. Every thread does so itself, which costs less than waiting.
    fn chosen(&self, ctx: &Context<'_>, rows: usize) -> Chosen {
        let expert = |pair: usize| {
            let Some(routes) = self.routes else {
                return pair % self.used;
            };
            let at = ctx.value_row(routes, pair / self.used);
            // SAFETY: routes are rows of `2 used` numbers that an earlier kernel stored.
            let index = unsafe { *at.add(pair % self.used) } as usize;
            index.min(self.parts.len() - 1)
        };
        let pairs = rows * self.used;
        let mut starts = vec![0; self.parts.len() + 1];
        for pair in 0..pairs {
            starts[expert(pair) + 1] += 1;
        }
        let mut groups = vec![];
        for e in 0..self.parts.len() {
            let count = starts[e + 1];
            starts[e + 1] += starts[e];
            if count > 0 {
                groups.push(Group {
                    expert: e,
                    first: starts[e],
                    count,
                });
            }
        }
        let mut sorted = vec![0; pairs];
        for pair in 0..pairs {
            let next = &mut starts[expert(pair)];
            sorted[*next] = pair as u32;
            *next += 1;
        }
        let input = |pair: &u32| match self.each() {
            true => *pair,
            false => pair / self.used as u32,
        };
        Chosen {
            taken: sorted.iter().map(input).collect(),
            pairs: sorted,
            groups,
        }
    }

    /// Stores a tile's products, or adds them to the rows' sums.
    unsafe fn store(&self, ctx: &Context<'_>, chosen: &Chosen, (e, column): (Extent, usize)) {
        let pairs = &chosen.pairs[e.first..e.first + e.rows];
        // SAFETY: the caller's duty.
        unsafe {
            for (i, pair) in pairs.iter().enumerate() {
                let (row, place) = (*pair as usize / self.used, *pair as usize % self.used);
                let from = e.out.add(i * e.stride).cast_const();
                let to = ctx.value_row(self.out, row).add(column);
                let Some(routes) = self.routes.filter(|_| self.combine) else {
                    std::ptr::copy_nonoverlapping(from, to.add(place * self.n), e.columns);
                    continue;
                };
                let weight = *ctx.value_row(routes, row).add(self.used + place);
                for c in 0..e.columns {
                    *to.add(c) += weight * *from.add(c);
                }
            }
        }
    }
}
