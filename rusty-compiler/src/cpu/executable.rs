//! A plan bound to the CPU.

use super::body::RopeRows;
use super::context::{Context, Run, Scratch, ValueAt, value_at};
use super::deltas::slots::SlotTable;
use super::kernels::{CpuKernel, cpu_kernels};
use super::kv::{self, KvHalf, KvPool};
use super::memory::Buffer;
use super::pool::{Barrier, Pool};
use super::quantize::Inputs;
use super::shares::Tally;
use super::simd::Level;
use super::weights::{ReadsAhead, Weights};
use super::working_memory::WorkingMemory;
use crate::plan::Plan;
use crate::slots::{KvPrefix, PrefixLayer, SlotData, SlotId};
use crate::step::{
    BindOptions, Executable, MemoryUse, RowResult, Step, StepLimits, StepOutput, Want,
};
use crate::{Error, PAGE_TOKENS, Result};
use rusty_backend::{CpuDevice, Isa, Target};
use rusty_loader::ModelFile;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

/// A plan bound to weights and the CPU's threads.
pub struct CpuExecutable {
    plan: Plan,
    level: Level,
    pool: Pool,
    weights: Weights,
    kernels: Vec<CpuKernel>,
    counters: Vec<AtomicUsize>,
    tallies: Vec<Tally>,
    memory: WorkingMemory,
    kv: KvPool,
    pages: u32,
    slots: SlotTable,
    slot_count: u32,
}

impl CpuExecutable {
    /// Binds a plan to a CPU: reads vectors, reserves KV pages and starts the device's threads. Block-quantized
    /// matrices are repacked before the first step of more rows than a block's, or else before the second step; from then
    /// on each step begins with shortening some of BF16.
    ///
    /// # Errors
    /// A weight is missing or not as planned, a kernel cannot run here, or threads cannot be started.
    pub fn bind(
        plan: Plan,
        file: &dyn ModelFile,
        device: &CpuDevice,
        options: &BindOptions,
    ) -> Result<Self> {
        let mut isa = device.target().isa;
        // A plan in single precision is one for a machine that does not multiply brain floats.
        if let (Isa::Avx512 { bf16, .. }, Isa::Avx512 { bf16: false, .. }) =
            (&mut isa, plan.target.isa)
        {
            *bf16 = false;
        }
        Self::bind_isa(plan, file, isa, device, options)
    }

    /// As [`CpuExecutable::bind`], with the kernels of `isa`, so that all of them can be checked on one
    /// machine; where the machine lacks only its products of bytes those without them, portable code where it lacks more.
    ///
    /// # Errors
    /// As [`CpuExecutable::bind`].
    pub fn bind_isa(
        plan: Plan,
        file: &dyn ModelFile,
        isa: Isa,
        device: &CpuDevice,
        options: &BindOptions,
    ) -> Result<Self> {
        let target = device.target();
        let level = Level::for_isa(isa);
        let threads = target.threads.max(1);
        let pool = Pool::new(threads).map_err(|e| Error::Target {
            target: target.name.clone(),
            kernel: "all".into(),
            reason: format!("{threads} threads cannot be started: {e}"),
        })?;
        let room = room(&plan, target, options)?;
        // Bytes were found faster so with the register file of AVX-512, and slower with that of AVX2.
        let reads_ahead = match (target.reads_ahead, level.row_panels()) {
            (false, _) => ReadsAhead::None,
            (true, ..4) => ReadsAhead::Narrow,
            (true, _) => ReadsAhead::All,
        };
        let weights = Weights::bind(&plan, file, room, level.has_brains(isa), reads_ahead)?;
        let (kernels, needs) = cpu_kernels(&plan, &weights, threads)?;
        let kv = KvPool::new(&plan.kv, options.pages, options.kv);
        let memory = WorkingMemory::new(&plan, &needs, &weights, threads, options);
        let counters = (0..2 * kernels.len())
            .map(|_| AtomicUsize::new(0))
            .collect();
        Ok(Self {
            level,
            pool,
            weights,
            kernels,
            counters,
            tallies: (0..threads).map(|_| Tally::default()).collect(),
            memory,
            kv,
            pages: options.pages,
            slots: SlotTable::new(options.slots),
            slot_count: options.slots,
            plan,
        })
    }

    fn check(&self, step: &Step<'_>) -> Result<()> {
        step.check(&StepLimits {
            chosen: 0,
            rows: self.plan.row_budget(),
            selected: self.plan.output_budget(),
            vocab: self.plan.vocab,
            pages: self.pages,
            slots: self.slot_count,
            prompt_rows: &|slot| self.slots.data(slot).map_or(0, SlotData::prompt_rows),
        })
    }

    /// Cosines and sines of the step's positions.
    fn fill_ropes(&self, step: &Step<'_>, runs: &[Run]) -> Vec<RopeRows> {
        let specs = self.plan.ropes.iter().zip(&self.memory.ropes);
        specs
            .map(|(spec, buffer)| {
                let half = spec.dims as usize / 2;
                for run in runs {
                    let turns = spec.turns(step.sequences[run.sequence].rope_length);
                    for row in run.first..run.first + run.rows {
                        // SAFETY: the buffer holds the step's maximum of rows, and no job runs.
                        let out = unsafe {
                            let at = buffer.floats().add(row * 2 * half);
                            std::slice::from_raw_parts_mut(at, 2 * half)
                        };
                        let (cos, sin) = out.split_at_mut(half);
                        let lanes = cos.iter_mut().zip(sin);
                        for ((cos, sin), turn) in lanes.zip(turns.at(step.positions[row])) {
                            (*cos, *sin) = turn;
                        }
                    }
                }
                RopeRows {
                    at: buffer.floats(),
                    half,
                }
            })
            .collect()
    }

    fn execute(&self, step: &Step<'_>, selected: &[u32]) -> Result<()> {
        let runs = runs(step);
        let ropes = self.fill_ropes(step, &runs);
        self.counters
            .iter()
            .for_each(|c| c.store(0, Ordering::Relaxed));
        self.tallies.iter().for_each(Tally::clear);
        let m = &self.memory;
        let context = Context {
            level: self.level,
            threads: self.pool.threads(),
            barrier: self.pool.barrier(),
            arena: m.arena.ptr(),
            weights: &self.weights,
            kv: &self.kv,
            slots: &self.slots,
            vocab: self.plan.vocab,
            adapted: self.slots.active(step.slots),
            inputs: &m.inputs,
            gained: &m.gained,
            lows: &m.lows,
            partials: &m.partials,
            step,
            selected,
            runs: &runs,
            ropes: &ropes,
            counters: &self.counters,
            tallies: &self.tallies,
        };
        let job = |thread: usize| {
            let mut scratch = m.scratch[thread]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.walk(&context, thread, &mut scratch, context.barrier);
        };
        self.pool.run(&job).map_err(|_| {
            Error::Step("a thread of the CPU pool failed; the executable must be rebuilt".into())
        })
    }

    fn walk(&self, ctx: &Context<'_>, thread: usize, scratch: &mut Scratch, barrier: Barrier<'_>) {
        for kernel in &self.kernels {
            // SAFETY: the plan is verified, its operands are bound, and every thread walks it with this
            // context; the barrier orders kernels.
            unsafe {
                match kernel {
                    CpuKernel::Contract(c) => c.run(ctx, thread, scratch),
                    CpuKernel::Rows(r) => r.run(ctx, thread, scratch),
                    CpuKernel::Largest(l) => l.run(ctx, thread),
                    CpuKernel::Attend(a) => a.run(ctx, scratch),
                    CpuKernel::Route(r) => r.run(ctx, thread),
                    CpuKernel::Experts(e) => e.run(ctx, thread, scratch),
                }
            }
            barrier.wait();
        }
    }

    fn row<T: Copy>(&self, value: ValueAt, row: usize) -> &[T] {
        debug_assert_eq!(size_of::<T>(), 4);
        let at = self.memory.arena.ptr().wrapping_add(value.offset);
        // SAFETY: the value lies in the arena, any bits are a valid `f32` or `u32`, and no job runs.
        unsafe { std::slice::from_raw_parts(at.cast::<T>().add(row * value.width), value.width) }
    }
}

impl Executable for CpuExecutable {
    fn run(&mut self, step: &Step<'_>) -> Result<StepOutput> {
        self.check(step)?;
        self.weights.before_step(step.tokens.len(), self.level);
        let selected = step.selected();
        self.execute(step, &selected)?;
        let logits = value_at(&self.plan, self.plan.logits);
        let hidden = value_at(&self.plan, self.plan.hidden);
        let argmax = value_at(&self.plan, self.plan.argmax);
        let results = selected.iter().enumerate().filter_map(|(i, &row)| {
            let result = match step.wants[row as usize] {
                Want::Nothing => return None,
                Want::ArgMax => RowResult::pick(self.row::<u32>(argmax, i)[0]),
                Want::Logits => RowResult::Logits(self.row::<f32>(logits, i).to_vec()),
                Want::Hidden => RowResult::Hidden(self.row::<f32>(hidden, i).to_vec()),
            };
            Some((row, result))
        });
        Ok(StepOutput {
            results: results.collect(),
        })
    }

    fn attach(&mut self, slot: SlotId, data: Arc<SlotData>) -> Result<()> {
        self.slots.attach(slot, data, self.plan.slot_shape())?;
        let rows = self.plan.row_budget();
        let contracts = || {
            self.kernels.iter().filter_map(|k| match k {
                CpuKernel::Contract(c) => Some(c),
                _ => None,
            })
        };
        let most = self.slots.most_lows();
        let values = self.kernels.iter().map(|k| match k {
            CpuKernel::Contract(c) => c.parts.len() * most.contracts,
            CpuKernel::Experts(e) => e.parts.len() * e.used * most.grouped,
            _ => 0,
        });
        let lows = values.max().unwrap_or(0) * rows;
        let parts = contracts().map(|c| c.parts.len()).max().unwrap_or(0);
        if self.memory.lows.bytes() < lows * 4 {
            self.memory.lows = Buffer::words(lows);
        }
        if self.slots.gains_inputs() && self.memory.gained.is_empty() {
            let k = contracts().map(|c| c.k).max().unwrap_or(0);
            let starts = contracts().map(|c| c.forms.starts()).max().unwrap_or(0);
            let brains = contracts().any(|c| c.forms.brains);
            let inputs = (0..parts).map(|_| Inputs::new(rows, k, starts, brains));
            self.memory.gained = inputs.collect();
        }
        Ok(())
    }

    fn detach(&mut self, slot: SlotId) -> Result<()> {
        self.slots.detach(slot)
    }

    fn write_prefix(&mut self, pages: &[u32], prefix: &KvPrefix) -> Result<()> {
        prefix.check_pages(pages, self.pages, &self.plan.kv)?;
        for (layer, PrefixLayer { keys, values }) in prefix.layers.iter().enumerate() {
            for token in 0..prefix.tokens as usize {
                let page = pages[token / PAGE_TOKENS];
                for (half, rows) in [(KvHalf::Keys, keys), (KvHalf::Values, values)] {
                    let width = rows.len() / prefix.tokens as usize;
                    let place = self.kv.place(layer as u32, half, page, token % PAGE_TOKENS);
                    let row = rows[token * width..].as_ptr();
                    // SAFETY: the page is inside the pool and the row has the layer's width, as was
                    // checked; no step runs.
                    unsafe { kv::store(self.level, place, 0, width, row) };
                }
            }
        }
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<()> {
        let copied = self.kv.copy_page(from, to);
        copied.then_some(()).ok_or_else(|| {
            Error::Step(format!(
                "page {from} to {to}: there are {} pages",
                self.pages
            ))
        })
    }

    fn memory(&self) -> MemoryUse {
        let (mapped, resident) = self.weights.bytes();
        MemoryUse {
            mapped_weights: mapped,
            resident_weights: resident,
            kv: self.kv.bytes() as u64,
            adapters: self.slots.bytes() as u64,
            adapter_room: 0,
            arena: self.memory.bytes() as u64,
        }
    }

    fn copies_tables(&self) -> bool {
        false
    }

    fn compiled_kernels(&self) -> usize {
        0
    }
}

/// Memory that is left for copies of weights beside keys, values and activations.
///
/// # Errors
/// Those do not fit, or keys and values cannot be stored as asked.
fn room(plan: &Plan, target: &Target, options: &BindOptions) -> Result<u64> {
    if let Some(reason) = options.kv.refusal(&plan.kv) {
        return Err(Error::Target {
            target: target.name.clone(),
            kernel: "attention".into(),
            reason,
        });
    }
    let name = options.kv.name();
    let tokens = u64::from(options.pages) * PAGE_TOKENS as u64;
    let asked = plan.kv_bytes_per_token(options.kv).saturating_mul(tokens);
    let held = asked.saturating_add(plan.arena_bytes);
    target.memory_bytes.checked_sub(held).ok_or_else(|| {
        Error::Device(rusty_backend::Error::OutOfMemory {
            device: target.name.clone(),
            owner: format!(
                "{name} keys and values of {tokens} tokens (a shorter context or fewer bits take less)"
            ),
            asked,
            used: plan.arena_bytes,
            limit: target.memory_bytes,
        })
    })
}

/// Consecutive rows of one sequence.
fn runs(step: &Step<'_>) -> Vec<Run> {
    let mut runs: Vec<Run> = vec![];
    for (row, &sequence) in step.sequence_of.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.sequence == sequence as usize => run.rows += 1,
            _ => runs.push(Run {
                first: row,
                rows: 1,
                sequence: sequence as usize,
            }),
        }
    }
    runs
}
