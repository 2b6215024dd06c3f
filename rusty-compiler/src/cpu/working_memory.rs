//! The memory that a step works in: activations, inputs of kernels, each thread's scratch.

use super::attention::partial::MAX_QUERIES;
use super::attention::tasks::{Attend, most_spans};
use super::context::Scratch;
use super::contract::BLOCK_ROWS;
use super::filled::PRIVATE_ROWS;
use super::kernels::{Needs, cpu_kernels};
use super::kv::block_lanes;
use super::memory::Buffer;
use super::prefetch::Ahead;
use super::quantize::Inputs;
use super::registers::Registers;
use super::simd::LANES;
use super::strips::STRIP;
use super::weights::{Matrix, Weights};
use super::{short_rows, short_tile};
use crate::plan::Plan;
use crate::{BindOptions, PAGE_TOKENS, Result};
use rusty_loader::ModelFile;
use std::sync::{Mutex, PoisonError};

/// Most memory for the partial results of attention spans.
const PARTIAL_BYTES: usize = 16 << 20;

/// Bytes that `threads` threads of a CPU work in beside weights, keys and values, told without running anything.
/// Adapters' intermediates come on top.
///
/// # Errors
/// A weight is missing or not as planned, or a kernel cannot run here.
pub fn working_bytes(
    plan: &Plan,
    file: &dyn ModelFile,
    threads: usize,
    options: &BindOptions,
) -> Result<u64> {
    let weights = Weights::find(plan, file)?;
    let (_, needs) = cpu_kernels(plan, &weights, threads)?;
    let memory = WorkingMemory::new(plan, &needs, &weights, threads, options);
    Ok(memory.bytes() as u64)
}

/// What all threads share beside the weights.
pub(super) struct WorkingMemory {
    pub(super) arena: Buffer,
    pub(super) inputs: Inputs,
    pub(super) gained: Vec<Inputs>,
    pub(super) lows: Buffer,
    pub(super) partials: Buffer,
    pub(super) ropes: Vec<Buffer>,
    pub(super) scratch: Vec<Mutex<Scratch>>,
}

impl WorkingMemory {
    /// What the kernels of a plan need on `threads` threads.
    pub(super) fn new(
        plan: &Plan,
        needs: &Needs,
        weights: &Weights,
        threads: usize,
        options: &BindOptions,
    ) -> Self {
        let (rows, selected) = (plan.row_budget(), plan.output_budget());
        let panel = plan.weights.iter().enumerate().filter_map(|(i, _)| {
            let id = rusty_graph::WeightId(i as u32);
            match weights.matrix_of(id)? {
                Matrix::Stored { layout, .. } => Some(layout.panel_bytes()),
                Matrix::Float { kind, k, .. } if short_rows::fits(*kind, *k) => {
                    (!weights.routed.contains(&id)).then(|| short_tile::word_bytes(*k))
                }
                _ => None,
            }
        });
        let panel = panel.max().unwrap_or(0);
        let block_lanes = block_lanes(&plan.kv, options.kv);
        let scratch = || Scratch {
            regs: Registers::new(needs.ops, needs.lanes),
            tile: Buffer::words((needs.parts * BLOCK_ROWS * STRIP).max(needs.row_words) + LANES),
            results: vec![std::ptr::null(); needs.parts],
            inputs: Inputs::new(PRIVATE_ROWS, needs.k, needs.starts, needs.brains),
            panel: Buffer::new(panel),
            attention: Buffer::words(needs.attention),
            queries: Inputs::new(MAX_QUERIES, block_lanes, 1, false),
            ahead: Ahead::default(),
        };
        let spans = most_spans(options.pages as usize * PAGE_TOKENS);
        let partials = 4 * threads * Attend::partial_words(needs.padded, spans) * 4;
        let largest = selected * threads * size_of::<(f32, u32)>();
        let rope = |dims: u32| Buffer::words(rows * dims as usize);
        Self {
            arena: Buffer::new(plan.arena_bytes as usize),
            inputs: Inputs::new(rows, needs.k, needs.starts, needs.brains),
            gained: vec![],
            lows: Buffer::new(0),
            partials: Buffer::new(partials.min(PARTIAL_BYTES).max(largest)),
            ropes: plan.ropes.iter().map(|r| rope(r.dims)).collect(),
            scratch: (0..threads).map(|_| Mutex::new(scratch())).collect(),
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let scratch = |s: &Mutex<Scratch>| s.lock().unwrap_or_else(PoisonError::into_inner).bytes();
        self.arena.bytes()
            + self.inputs.bytes()
            + self.gained.iter().map(Inputs::bytes).sum::<usize>()
            + self.lows.bytes()
            + self.partials.bytes()
            + self.ropes.iter().map(Buffer::bytes).sum::<usize>()
            + self.scratch.iter().map(scratch).sum::<usize>()
    }
}
