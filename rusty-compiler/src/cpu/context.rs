//! What a thread knows while it runs a step, and storing a tail's lanes.

use super::body::{self, Lanes, Program, RopeRows};
use super::deltas::slots::SlotTable;
use super::kv::{self, KvHalf, KvPool};
use super::memory::Buffer;
use super::pool::Barrier;
use super::prefetch::Ahead;
use super::quantize::Inputs;
use super::registers::Registers;
use super::shares::Tally;
use super::simd::Level;
use super::weights::Weights;
use crate::plan::{Kernel, Plan, Sink, Tail};
use crate::slots::SlotId;
use crate::step::Step;
use crate::{Error, PAGE_TOKENS, Result};
use rusty_graph::{L, T};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Over which rows of the step a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowSet {
    /// All.
    Tokens,
    /// Those that want an output.
    Selected,
}

impl RowSet {
    /// The row set of a dimension of the plan.
    pub(super) fn of(plan: &Plan, kernel: &Kernel) -> Result<Self> {
        match kernel.rows {
            T => Ok(RowSet::Tokens),
            L => Ok(RowSet::Selected),
            other => Err(Error::Target {
                target: plan.target.name.clone(),
                kernel: kernel.name.clone(),
                reason: format!("runs over {other:?}, neither T nor L"),
            }),
        }
    }
}

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) sequence: usize,
}

/// A thread's own memory.
pub(super) struct Scratch {
    pub(super) regs: Registers,
    /// Results of a strip, `[part, rows of a block, strip]`, or of a piece of one row.
    pub(super) tile: Buffer,
    pub(super) results: Vec<*const f32>,
    /// Inputs of a few rows.
    pub(super) inputs: Inputs,
    /// One panel of a matrix that stays in the file, or the words of some shortened rows.
    pub(super) panel: Buffer,
    /// Scores, two partials and a block's results.
    pub(super) attention: Buffer,
    /// Queries of a block, where keys are blocks.
    pub(super) queries: Inputs,
    /// Tables of adapters that are soon read.
    pub(super) ahead: Ahead,
}

// SAFETY: the pointers are refilled by the thread that uses them.
unsafe impl Send for Scratch {}

impl Scratch {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.regs.bytes()
            + self.tile.bytes()
            + self.inputs.bytes()
            + self.panel.bytes()
            + self.attention.bytes()
            + self.queries.bytes()
    }
}

/// One step, seen by all threads.
pub(super) struct Context<'a> {
    pub(super) level: Level,
    pub(super) threads: usize,
    pub(super) barrier: Barrier<'a>,
    pub(super) arena: *mut u8,
    pub(super) weights: &'a Weights,
    pub(super) kv: &'a KvPool,
    pub(super) slots: &'a SlotTable,
    /// Entries of the vocabulary; larger tokens are an adapter's own.
    pub(super) vocab: u32,
    /// Whether some row's slot is filled.
    pub(super) adapted: bool,
    pub(super) inputs: &'a Inputs,
    /// Inputs of parts whose adapters scale them, by part.
    pub(super) gained: &'a [Inputs],
    /// `A x` of adapted rows, `[part, row, rank]`; of experts' products, `[product, rank]` in the order of experts.
    pub(super) lows: &'a Buffer,
    /// Partials of attention spans and of the largest lanes.
    pub(super) partials: &'a Buffer,
    pub(super) step: &'a Step<'a>,
    pub(super) selected: &'a [u32],
    pub(super) runs: &'a [Run],
    pub(super) ropes: &'a [RopeRows],
    pub(super) counters: &'a [AtomicUsize],
    /// What is taken of each thread's share.
    pub(super) tallies: &'a [Tally],
}

// SAFETY: the raw pointers lead to memory whose parts are written by one thread each between barriers.
unsafe impl Sync for Context<'_> {}

impl Context<'_> {
    /// Number of rows.
    pub(super) fn rows(&self, set: RowSet) -> usize {
        match set {
            RowSet::Tokens => self.step.rows(),
            RowSet::Selected => self.selected.len(),
        }
    }

    /// Row of the step.
    pub(super) fn token_row(&self, set: RowSet, row: usize) -> usize {
        match set {
            RowSet::Tokens => row,
            RowSet::Selected => self.selected[row] as usize,
        }
    }

    /// Adapter slot of a row.
    pub(super) fn slot(&self, set: RowSet, row: usize) -> SlotId {
        self.step.slots[self.token_row(set, row)]
    }

    /// The next piece of work under a counter.
    pub(super) fn next(&self, counter: usize) -> usize {
        self.counters[counter].fetch_add(1, Ordering::Relaxed)
    }

    /// The next piece of work under a counter whose first pieces are the threads' own.
    pub(super) fn draw(&self, counter: usize) -> usize {
        self.threads + self.next(counter)
    }

    /// A value's row.
    pub(super) fn value_row(&self, value: ValueAt, row: usize) -> *mut f32 {
        let base: *mut f32 = self.arena.wrapping_add(value.offset).cast();
        base.wrapping_add(row * value.width)
    }

    /// Runs a tail over some lanes of a row and stores them.
    ///
    /// # Safety
    /// `results` hold the lanes; no other thread stores them.
    pub(super) unsafe fn tail(
        &self,
        tail: &TailCode,
        row: usize,
        first: usize,
        count: usize,
        results: &[*const f32],
        regs: &mut Registers,
    ) {
        let lanes = Lanes {
            row,
            first,
            count,
            results,
            arena: self.arena,
            ropes: self.ropes,
        };
        // SAFETY: the caller's duty; the plan's verifier checked widths.
        unsafe {
            let from = body::run(self.level, &tail.program, lanes, regs);
            match tail.sink {
                SinkAt::Value(value) => {
                    let to = self.value_row(value, row).add(first);
                    std::ptr::copy_nonoverlapping(from, to, count);
                }
                SinkAt::Key(layer) => {
                    self.store_kv(layer, KvHalf::Keys, row, first, count, from);
                }
                SinkAt::Val(layer) => {
                    self.store_kv(layer, KvHalf::Values, row, first, count, from);
                }
            }
        }
    }

    unsafe fn store_kv(
        &self,
        layer: u32,
        half: KvHalf,
        row: usize,
        first: usize,
        count: usize,
        from: *const f32,
    ) {
        let position = self.step.positions[row] as usize;
        let sequence = self.step.sequences[self.step.sequence_of[row] as usize];
        let page = sequence.pages[position / PAGE_TOKENS];
        let place = self.kv.place(layer, half, page, position % PAGE_TOKENS);
        // SAFETY: the page is inside the pool (checked with the step) and this row's place is written by
        // one thread.
        unsafe { kv::store(self.level, place, first, count, from) }
    }
}

/// Where a value lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueAt {
    pub(super) offset: usize,
    pub(super) width: usize,
}

/// Where a tail stores.
#[derive(Clone, Copy, Debug)]
pub(super) enum SinkAt {
    Value(ValueAt),
    Key(u32),
    Val(u32),
}

impl SinkAt {
    /// Resolves a sink.
    pub(super) fn new(plan: &Plan, sink: Sink) -> Self {
        match sink {
            Sink::Value(v) => SinkAt::Value(value_at(plan, v)),
            Sink::Key { layer } => SinkAt::Key(layer),
            Sink::Val { layer } => SinkAt::Val(layer),
        }
    }
}

/// Place of a plan value.
pub(super) fn value_at(plan: &Plan, id: crate::plan::PlanValueId) -> ValueAt {
    let value = plan.value(id);
    ValueAt {
        offset: value.offset as usize,
        width: value.width as usize,
    }
}

/// A tail with resolved operands.
pub(super) struct TailCode {
    pub(super) program: Program,
    pub(super) sink: SinkAt,
    pub(super) width: usize,
}

impl TailCode {
    /// Resolves a tail of `kernel`.
    pub(super) fn new(
        plan: &Plan,
        kernel: &Kernel,
        tail: &Tail,
        weights: &Weights,
    ) -> Result<Self> {
        Ok(Self {
            program: program(plan, kernel, &tail.body, weights)?,
            sink: SinkAt::new(plan, tail.sink),
            width: tail.width as usize,
        })
    }
}

/// Resolves a body.
pub(super) fn program(
    plan: &Plan,
    kernel: &Kernel,
    body: &crate::plan::Body,
    weights: &Weights,
) -> Result<Program> {
    Program::new(plan, kernel, body, weights).ok_or_else(|| Error::Invalid {
        pass: "bind",
        kernel: kernel.name.clone(),
        reason: "a body reads an operand that is not bound".into(),
    })
}
