//! Attention's tasks: which thread attends for which rows and heads, over which part of the cache.

use super::partial::{self, MAX_QUERIES, Partial};
use super::{Block, SCORE_WORDS, SPAN, attend, finish, quantize_queries};
use crate::Result;
use crate::cpu::context::{Context, Scratch, TailCode, ValueAt};
use crate::cpu::quantize::Inputs;
use crate::cpu::rows::{invalid, operand, tails};
use crate::cpu::weights::Weights;
use crate::plan::{Anchor, Kernel, Plan};
use rusty_graph::AttentionSpec;

/// An attention kernel.
pub(in crate::cpu) struct Attend {
    spec: AttentionSpec,
    /// Query heads of a task.
    group: usize,
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
    pub(in crate::cpu) fn new(
        plan: &Plan,
        kernel: &Kernel,
        weights: &Weights,
        counter: usize,
    ) -> Result<Self> {
        let Anchor::Attention { q, spec } = &kernel.anchor else {
            return Err(invalid(kernel, "is not attention"));
        };
        let group = (spec.heads / spec.kv_heads.max(1)) as usize;
        let fits = |heads: &usize| group.is_multiple_of(*heads);
        Ok(Self {
            spec: *spec,
            group: (1..=group.min(MAX_QUERIES)).rev().find(fits).unwrap_or(1),
            q: operand(plan, kernel, *q)?,
            tails: tails(plan, kernel, weights)?,
            counter,
        })
    }

    /// Instructions of the longest body and lanes of the widest.
    pub(in crate::cpu) fn register_need(&self) -> (usize, usize) {
        let ops = self
            .tails
            .iter()
            .map(|t| t.program.len())
            .max()
            .unwrap_or(0);
        (ops, self.group * self.spec.head_dim as usize)
    }

    /// Words of thread scratch: scores, two partials, a block's results.
    pub(in crate::cpu) fn scratch_words(&self, padded: usize) -> usize {
        SCORE_WORDS + 2 * Partial::words(padded) + MAX_QUERIES * self.spec.head_dim as usize
    }

    /// Words that all partials of one task of `spans` spans take.
    pub(in crate::cpu) fn partial_words(padded: usize, spans: usize) -> usize {
        spans * Partial::words(padded)
    }

    /// Tasks of a block of rows.
    fn shares(&self) -> usize {
        self.spec.heads as usize / self.group
    }

    /// Cuts the step's rows into blocks.
    fn tasks(&self, ctx: &Context<'_>) -> Vec<Task> {
        let size = (MAX_QUERIES / self.group).max(1);
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

    fn block<'a>(
        &self,
        ctx: &Context<'a>,
        queries: &Inputs,
        task: &Task,
        share: usize,
    ) -> Block<'a> {
        let layer = ctx.kv.layer(self.spec.layer);
        let forms = layer.shape.blocks.map(|b| b.forms).unwrap_or_default();
        Block {
            spec: self.spec,
            layer,
            head: share * self.group,
            group: self.group,
            q: ctx.value_row(self.q, task.row),
            rows: task.rows,
            position: task.position,
            pages: ctx.step.sequences[task.sequence].pages,
            quantized: queries.rows(layer.shape.head_dim, forms),
        }
    }

    /// Runs this thread's share.
    ///
    /// # Safety
    /// As for [`Rows::run`](crate::cpu::rows::Rows::run); keys and values of the step are stored.
    pub(in crate::cpu) unsafe fn run(&self, ctx: &Context<'_>, scratch: &mut Scratch) {
        let tasks = self.tasks(ctx);
        let shares = self.shares();
        let padded = ctx.kv.layer(self.spec.layer).shape.result;
        let spans = |t: &Task| self.block(ctx, &scratch.queries, t, 0).spans().len();
        let most = tasks.iter().map(spans).max().unwrap_or(1);
        let fits =
            tasks.len() * shares * Self::partial_words(padded, most) * 4 <= ctx.partials.bytes();
        // SAFETY: the caller's duty.
        unsafe {
            if most > 1 && tasks.len() * shares < 4 * ctx.threads && fits {
                self.run_spans(ctx, scratch, &tasks, most, padded);
                return;
            }
            // The last blocks of a prompt see most keys: they go first.
            loop {
                let piece = ctx.next(self.counter);
                if piece >= tasks.len() * shares {
                    break;
                }
                let task = &tasks[tasks.len() - 1 - piece / shares];
                let block = self.block(ctx, &scratch.queries, task, piece % shares);
                quantize_queries(ctx.level, block);
                let (scores, whole, part) = split(scratch, padded);
                let mut first = true;
                whole.clear(block.queries());
                for span in block.spans() {
                    let into = if first { whole } else { part };
                    attend(ctx.level, block, span, scores, into);
                    if !first {
                        partial::merge(whole, part, block.queries());
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
        let shares = self.shares();
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
                if piece >= tasks.len() * shares * most {
                    break;
                }
                let (at, span) = (piece / most, piece % most);
                let block = self.block(ctx, &scratch.queries, &tasks[at / shares], at % shares);
                if let Some(number) = block.spans().nth(span) {
                    let (scores, ..) = split(scratch, padded);
                    quantize_queries(ctx.level, block);
                    attend(ctx.level, block, number, scores, partial(at, span));
                }
            }
            ctx.barrier.wait();
            loop {
                let at = ctx.next(self.counter + 1);
                if at >= tasks.len() * shares {
                    break;
                }
                let task = &tasks[at / shares];
                let block = self.block(ctx, &scratch.queries, task, at % shares);
                for span in 1..block.spans().len() {
                    partial::merge(partial(at, 0), partial(at, span), block.queries());
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
        let lanes = self.group * self.spec.value_dim() as usize;
        let base = scratch.attention.floats();
        let at = SCORE_WORDS + 2 * Partial::words(from.padded);
        // SAFETY: the scratch holds a block's results; this block's lanes are this thread's.
        unsafe {
            let out = base.add(at);
            finish(block, from, out);
            for row in 0..task.rows {
                let result = [out.add(row * lanes).cast_const()];
                for tail in &self.tails {
                    let first = block.head / self.group * lanes;
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
pub(in crate::cpu) fn most_spans(context: usize) -> usize {
    context.div_ceil(SPAN) + 1
}
