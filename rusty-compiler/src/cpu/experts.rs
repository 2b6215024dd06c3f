//! Products with the experts that each row takes.
//!
//! Rows are grouped by expert, so that an expert that several rows take is read once, and one that no row takes not at
//! all. A thread owns strips of output columns and goes through the experts in order: where products are summed, a row's
//! sum has one order whatever its neighbours take. Tails consume an expert's products while they are hot, gate and up together, and sums
//! when all of a strip's experts are done.

use super::context::{Context, RowSet, Scratch, SinkAt, TailCode, ValueAt};
use super::contract::{BLOCK_ROWS, part_tile};
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
use crate::plan::{Anchor, ExpertPart, Inst, Kernel, Plan, Tail};
use rusty_graph::{SiteId, WeightId};

/// Where a kernel stores activations.
pub(super) fn stored(plan: &Plan, kernel: &Kernel) -> Vec<ValueAt> {
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
    /// Where products are summed.
    sums: Option<ValueAt>,
    /// What becomes of products, or of sums that are not stored as they are.
    tails: Vec<TailCode>,
    k: usize,
    n: usize,
    /// Products of a row and part.
    pub(super) used: usize,
    pub(super) parts: Vec<Part>,
    pub(super) forms: InputForms,
    strip: usize,
    counter: usize,
}

/// One product with each of a row's experts.
pub(super) struct Part {
    experts: Vec<PartCode>,
    /// The first expert's site; those of the others follow it.
    pub(super) sites: Option<SiteId>,
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

/// The experts' matrices of `n` rows; the forms of inputs that these are multiplied with are added. `None`: one is not bound.
fn codes(
    all: &[WeightId],
    n: usize,
    weights: &Weights,
    forms: &mut InputForms,
) -> Option<Vec<PartCode>> {
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
    Some(parts)
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
            parts: all,
        } = &kernel.anchor
        else {
            return Err(invalid(kernel, "is no product with experts"));
        };
        let n = *n as usize;
        let unbound = || invalid(kernel, "is not over bound weights");
        let mut forms = InputForms::default();
        let mut part = |part: &ExpertPart| {
            let experts = codes(&part.weights, n, weights, &mut forms)?;
            let sites = part.sites;
            Some(Part { experts, sites })
        };
        let parts = all.iter().map(&mut part).collect::<Option<_>>();
        let parts = parts.ok_or_else(unbound)?;
        let sums = match (combine, &stored(plan, kernel)[..]) {
            (false, _) => None,
            (true, [out]) => Some(*out),
            (true, _) => return Err(invalid(kernel, "has not one sum")),
        };
        let as_it_is = |tail: &&Tail| tail.body.as_identity() == Some(Inst::Result(0));
        let tails = kernel.tails.iter().filter(|t| !(*combine && as_it_is(t)));
        let tails = tails.map(|t| TailCode::new(plan, kernel, t, weights));
        let strip = (n / (threads * 8))
            .next_multiple_of(LANES)
            .clamp(LANES, STRIP);
        Ok(Self {
            rows: RowSet::of(plan, kernel)?,
            x: operand(plan, kernel, *x)?,
            routes: routes
                .map(|routes| operand(plan, kernel, routes))
                .transpose()?,
            sums,
            tails: tails.collect::<Result<_>>()?,
            k: *k as usize,
            n,
            used: *used as usize,
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
        self.sums.is_some() || self.routes.is_none()
    }

    /// Instructions of the longest body and lanes of the widest.
    pub(super) fn register_need(&self) -> (usize, usize) {
        let ops = self.tails.iter().map(|t| t.program.len());
        (ops.max().unwrap_or(0), STRIP)
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
                self.reduce(ctx, thread, inputs, &adapted, chosen.pairs.len());
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
                if let Some(sums) = self.sums {
                    for row in 0..rows {
                        let row = ctx.value_row(sums, row);
                        row.add(column).write_bytes(0, columns);
                    }
                }
                let draw = || ctx.draw(self.counter) * strip;
                let of = (column, columns, strip);
                let next = self.multiply(ctx, scratch, (inputs, &chosen, &adapted), of, draw);
                if let Some(sums) = self.sums.filter(|_| !self.tails.is_empty()) {
                    for row in 0..rows {
                        let of_row = ctx.value_row(sums, row).add(column);
                        self.finish(ctx, scratch, row, (column, columns), |_| of_row);
                    }
                }
                column = next;
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
                let tiles = scratch.tile.floats();
                for (p, part) in self.parts.iter().enumerate() {
                    let e = Extent {
                        first: group.first + block,
                        rows: count,
                        columns,
                        out: part_tile(tiles, p),
                        stride,
                    };
                    let next = || {
                        if let Some(part) = self.parts.get(p + 1) {
                            return part.experts[group.expert].stream(ctx, (column, columns));
                        }
                        if block + count < group.count {
                            // The same weights again.
                            return Stream::NONE;
                        }
                        let first = &self.parts[0].experts;
                        if let Some(group) = chosen.groups.get(g + 1) {
                            return first[group.expert].stream(ctx, (column, columns));
                        }
                        drawn = draw();
                        match drawn < self.n {
                            true => {
                                let columns = stride.min(self.n - drawn);
                                first[chosen.groups[0].expert].stream(ctx, (drawn, columns))
                            }
                            false => Stream::NONE,
                        }
                    };
                    // SAFETY: the caller's duty; this thread drew the columns.
                    unsafe {
                        part.experts[group.expert].product(ctx, scratch, inputs, (e, column), next);
                        self.expand(ctx, adapted, p, chosen.pairs.len(), (e, column));
                    }
                }
                let pairs = &chosen.pairs[group.first + block..][..count];
                // SAFETY: as above.
                unsafe { self.store(ctx, scratch, pairs, (column, columns, stride)) };
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
        let experts = self.parts[0].experts.len();
        let expert = |pair: usize| {
            let Some(routes) = self.routes else {
                return pair % self.used;
            };
            let at = ctx.value_row(routes, pair / self.used);
            // SAFETY: routes are rows of `2 used` numbers that an earlier kernel stored.
            let index = unsafe { *at.add(pair % self.used) } as usize;
            index.min(experts - 1)
        };
        let pairs = rows * self.used;
        let mut starts = vec![0; experts + 1];
        for pair in 0..pairs {
            starts[expert(pair) + 1] += 1;
        }
        let mut groups = vec![];
        for e in 0..experts {
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

    /// Makes of a tile's products what is stored, or adds them to the rows' sums.
    unsafe fn store(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        pairs: &[u32],
        (column, columns, stride): (usize, usize, usize),
    ) {
        let tiles = scratch.tile.floats();
        for (i, pair) in pairs.iter().enumerate() {
            let (row, place) = (*pair as usize / self.used, *pair as usize % self.used);
            let product = |p: usize| part_tile(tiles, p).wrapping_add(i * stride);
            // SAFETY: the caller's duty.
            unsafe {
                let Some((sums, routes)) = self.sums.zip(self.routes) else {
                    let lanes = (place * self.n + column, columns);
                    self.finish(ctx, scratch, row, lanes, product);
                    continue;
                };
                let (from, to) = (product(0), ctx.value_row(sums, row).add(column));
                let weight = *ctx.value_row(routes, row).add(self.used + place);
                for c in 0..columns {
                    *to.add(c) += weight * *from.add(c);
                }
            }
        }
    }

    /// What tails make of some lanes of a row, from those of each part's result.
    unsafe fn finish(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        row: usize,
        (first, count): (usize, usize),
        result: impl Fn(usize) -> *mut f32,
    ) {
        for p in 0..self.parts.len() {
            scratch.results[p] = result(p);
        }
        for tail in &self.tails {
            let regs = &mut scratch.regs;
            // SAFETY: the caller's duty; a tail that changes sums in place has them in registers when it stores them.
            unsafe { ctx.tail(tail, row, first, count, &scratch.results, regs) };
        }
    }
}
