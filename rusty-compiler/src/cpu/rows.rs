//! Kernels over rows without a product: maps, gathers, row selection, the largest lane; and attention's
//! tasks.

use super::attention::{self, Block, MAX_QUERIES, Partial, SCORE_WORDS, SPAN};
use super::context::{Context, RowSet, Scratch, SinkAt, TailCode, ValueAt, value_at};
use super::weights::Weights;
use crate::plan::{Anchor, Kernel, Operand, Plan};
use crate::{Error, Result};
use rusty_graph::{AttentionSpec, WeightId};

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

fn invalid(kernel: &Kernel, reason: &str) -> Error {
    Error::Invalid {
        pass: "bind",
        kernel: kernel.name.clone(),
        reason: reason.into(),
    }
}

fn operand(plan: &Plan, kernel: &Kernel, x: u16) -> Result<ValueAt> {
    match kernel.operands.get(x as usize) {
        Some(Operand::Value(v)) => Ok(value_at(plan, *v)),
        _ => Err(invalid(kernel, "its operand is not an activation")),
    }
}

fn tails(plan: &Plan, kernel: &Kernel, weights: &Weights) -> Result<Vec<TailCode>> {
    let tails = kernel.tails.iter();
    tails
        .map(|t| TailCode::new(plan, kernel, t, weights))
        .collect()
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

    /// Values of a gathered row.
    pub(super) fn row_words(&self) -> usize {
        match self.source {
            Source::Gather { width, .. } => width,
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
                let token = ctx.step.tokens[ctx.token_row(self.rows, row)] as usize;
                // SAFETY: the tile holds a gathered row.
                let lanes = unsafe { std::slice::from_raw_parts_mut(out, *width) };
                ctx.weights.gather(*table, token, lanes);
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
                for out in &self.out {
                    *ctx.value_row(*out, row).cast::<u32>() = best.1;
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

/// An attention kernel.
pub(super) struct Attend {
    spec: AttentionSpec,
    q: ValueAt,
    tails: Vec<TailCode>,
    counter: usize,
}

/// A block of query rows and where its tasks start.
struct Task {
    row: usize,
    rows: usize,
    sequence: usize,
    position: usize,
}

impl Attend {
    /// Resolves a kernel; its work is drawn from `counter` and the next one.
    pub(super) fn new(
        plan: &Plan,
        kernel: &Kernel,
        weights: &Weights,
        counter: usize,
    ) -> Result<Self> {
        let Anchor::Attention { q, spec } = &kernel.anchor else {
            return Err(invalid(kernel, "is not attention"));
        };
        let group = spec.heads / spec.kv_heads.max(1);
        if group as usize > MAX_QUERIES || group * spec.kv_heads != spec.heads {
            return Err(Error::Target {
                target: plan.target.clone(),
                kernel: kernel.name.clone(),
                reason: format!(
                    "{} query heads over {} key/value heads; up to {MAX_QUERIES} may share one",
                    spec.heads, spec.kv_heads
                ),
            });
        }
        Ok(Self {
            spec: *spec,
            q: operand(plan, kernel, *q)?,
            tails: tails(plan, kernel, weights)?,
            counter,
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
        (ops, self.group() * self.spec.head_dim as usize)
    }

    /// Words of thread scratch: scores, two partials, a block's results.
    pub(super) fn scratch_words(&self, padded: usize) -> usize {
        SCORE_WORDS + 2 * Partial::words(padded) + MAX_QUERIES * self.spec.head_dim as usize
    }

    /// Words that all partials of one task of `spans` spans take.
    pub(super) fn partial_words(padded: usize, spans: usize) -> usize {
        spans * Partial::words(padded)
    }

    fn group(&self) -> usize {
        (self.spec.heads / self.spec.kv_heads) as usize
    }

    /// Cuts the step's rows into blocks.
    fn tasks(&self, ctx: &Context<'_>) -> Vec<Task> {
        let size = (MAX_QUERIES / self.group()).max(1);
        let mut tasks = vec![];
        for run in ctx.runs {
            let position = ctx.step.positions[run.first] as usize;
            for at in (0..run.rows).step_by(size) {
                tasks.push(Task {
                    row: run.first + at,
                    rows: size.min(run.rows - at),
                    sequence: run.sequence,
                    position: position + at,
                });
            }
        }
        tasks
    }

    fn block<'a>(&self, ctx: &Context<'a>, task: &Task, kv_head: usize) -> Block<'a> {
        Block {
            spec: self.spec,
            layer: ctx.kv.layer(self.spec.layer),
            kv_head,
            q: ctx.value_row(self.q, task.row),
            rows: task.rows,
            position: task.position,
            pages: ctx.step.sequences[task.sequence].pages,
        }
    }

    /// Runs this thread's share.
    ///
    /// # Safety
    /// As for [`Rows::run`]; keys and values of the step are stored.
    pub(super) unsafe fn run(&self, ctx: &Context<'_>, scratch: &mut Scratch) {
        let tasks = self.tasks(ctx);
        let heads = self.spec.kv_heads as usize;
        let padded = ctx.kv.layer(self.spec.layer).shape.padded;
        let spans = |t: &Task| self.block(ctx, t, 0).spans().len();
        let most = tasks.iter().map(spans).max().unwrap_or(1);
        let fits =
            tasks.len() * heads * Self::partial_words(padded, most) * 4 <= ctx.partials.bytes();
        // SAFETY: the caller's duty.
        unsafe {
            if most > 1 && tasks.len() * heads < 4 * ctx.threads && fits {
                self.run_spans(ctx, scratch, &tasks, most, padded);
                return;
            }
            // The last blocks of a prompt see most keys: they go first.
            loop {
                let piece = ctx.next(self.counter);
                if piece >= tasks.len() * heads {
                    break;
                }
                let task = &tasks[tasks.len() - 1 - piece / heads];
                let block = self.block(ctx, task, piece % heads);
                let (scores, whole, part) = split(scratch, padded);
                let mut first = true;
                whole.clear(block.queries());
                for span in block.spans() {
                    let into = if first { whole } else { part };
                    attention::attend(ctx.level, block, span, scores, into);
                    if !first {
                        attention::merge(whole, part, block.queries());
                    }
                    first = false;
                }
                self.store(ctx, scratch, task, &block, whole);
            }
        }
    }

    /// Every span is a task; behind a barrier the partials are merged in order.
    unsafe fn run_spans(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        tasks: &[Task],
        most: usize,
        padded: usize,
    ) {
        let heads = self.spec.kv_heads as usize;
        let partial = |task: usize, span: usize| Partial {
            at: ctx
                .partials
                .floats()
                .wrapping_add((task * most + span) * Partial::words(padded)),
            padded,
        };
        // SAFETY: partials are written by one thread each and read behind the barrier.
        unsafe {
            loop {
                let piece = ctx.next(self.counter);
                if piece >= tasks.len() * heads * most {
                    break;
                }
                let (at, span) = (piece / most, piece % most);
                let block = self.block(ctx, &tasks[at / heads], at % heads);
                if let Some(number) = block.spans().nth(span) {
                    let (scores, ..) = split(scratch, padded);
                    attention::attend(ctx.level, block, number, scores, partial(at, span));
                }
            }
            ctx.barrier.wait();
            loop {
                let at = ctx.next(self.counter + 1);
                if at >= tasks.len() * heads {
                    break;
                }
                let task = &tasks[at / heads];
                let block = self.block(ctx, task, at % heads);
                for span in 1..block.spans().len() {
                    attention::merge(partial(at, 0), partial(at, span), block.queries());
                }
                self.store(ctx, scratch, task, &block, partial(at, 0));
            }
        }
    }

    unsafe fn store(
        &self,
        ctx: &Context<'_>,
        scratch: &mut Scratch,
        task: &Task,
        block: &Block<'_>,
        from: Partial,
    ) {
        let lanes = self.group() * self.spec.head_dim as usize;
        let base = scratch.attention.floats();
        let at = SCORE_WORDS + 2 * Partial::words(from.padded);
        // SAFETY: the scratch holds a block's results; this block's lanes are this thread's.
        unsafe {
            let out = base.add(at);
            attention::finish(block, from, out);
            for row in 0..task.rows {
                let result = [out.add(row * lanes).cast_const()];
                for tail in &self.tails {
                    let first = block.kv_head * lanes;
                    ctx.tail(
                        tail,
                        task.row + row,
                        first,
                        lanes,
                        &result,
                        &mut scratch.regs,
                    );
                }
            }
        }
    }
}

fn split(scratch: &Scratch, padded: usize) -> (*mut f32, Partial, Partial) {
    let scores = scratch.attention.floats();
    let whole = scores.wrapping_add(SCORE_WORDS);
    let part = whole.wrapping_add(Partial::words(padded));
    let partial = |at| Partial { at, padded };
    (scores, partial(whole), partial(part))
}

/// Most spans of a context.
pub(super) fn most_spans(context: usize) -> usize {
    context.div_ceil(SPAN) + 1
}
