//! Repacking block-quantized matrices into panels, and when.
//!
//! Matrices are repacked once, in parallel (measured on Zen 5 with Q4_0: decode is bound by memory instead of by
//! unpacking), and the mapped pages are given back, so a weight is never resident twice.
//!
//! A first step of few rows runs on what is stored: it reads every weight once, so that the copies, whose fresh memory the system
//! must first find and zero, would only keep the first token waiting. A model whose panels would not fit the machine's memory
//! stays in the mapping for good: slow, but it runs.
//!
//! The panels of routed experts are [made one by one](super::late_panels) when a step first takes them, also afterwards:
//! what no step takes is not read.

use super::contract::BLOCK_ROWS;
use super::late_panels::LatePanels;
use super::memory::{Buffer, release};
use super::shortening::Long;
use super::simd::Level;
use super::weights::{Matrix, Weights};
use rayon::prelude::*;
use rusty_backend::UnifiedTensor;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Share of the machine's memory that panels may take.
const PANEL_SHARE: f64 = 0.7;

/// When matrices are repacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repack {
    /// Before the next step, unless it is the first and short.
    AfterShortStep,
    /// Before the next step.
    BeforeStep,
    /// They are, or never will be.
    Settled,
}

impl Weights {
    /// To be called before a step of `rows` rows: repacks and shortens when it is time to.
    pub(super) fn before_step(&mut self, rows: usize, level: Level) {
        match self.repack {
            Repack::Settled => self.settle(),
            Repack::AfterShortStep if rows <= BLOCK_ROWS => self.repack = Repack::BeforeStep,
            Repack::AfterShortStep | Repack::BeforeStep => {
                self.repack();
                self.repack = Repack::Settled;
            }
        }
        if self.repack == Repack::Settled {
            self.shorten_some(level);
        }
    }

    /// Reserves room for panels and shortened rows, where the machine has it.
    pub(super) fn reserve(&mut self, memory: u64) {
        let stored = |m: &Matrix| match m {
            Matrix::Stored { layout, .. } => layout.bytes(),
            _ => 0,
        };
        let stored: usize = self.matrices.values().map(stored).sum();
        let all = self.find_long(stored);
        let room = |bytes: usize| {
            let fits = bytes as f64 <= memory as f64 * PANEL_SHARE;
            // A system may promise less than it has.
            fits.then(|| Buffer::reserved(bytes)).flatten()
        };
        let mut panels = room(all);
        if panels.is_none() {
            self.long = Long::default();
            panels = room(stored);
        }
        match panels {
            Some(panels) => {
                self.panels = panels;
                self.repack = Repack::AfterShortStep;
            }
            None => tracing::warn!(
                "{stored} bytes of weights do not fit beside {memory} bytes of memory: they stay in the file"
            ),
        }
    }

    fn repack(&mut self) {
        let start = Instant::now();
        let mut offset = 0;
        for (id, matrix) in &mut self.matrices {
            let Matrix::Stored { bytes, layout } = matrix else {
                continue;
            };
            let (size, layout) = (layout.bytes(), *layout);
            if self.routed.contains(id) {
                let at = self.panels.ptr().wrapping_add(offset);
                let late = LatePanels::new(bytes.clone(), layout, at, self.finished.clone());
                *matrix = Matrix::Late(late);
                offset += size;
                continue;
            }
            // SAFETY: the range is inside the buffer, which nobody else uses yet.
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.panels.ptr().add(offset), size) };
            let UnifiedTensor::Host(bytes) = bytes else {
                continue;
            };
            let stored: &[u8] = bytes;
            out.par_chunks_mut(layout.panel_bytes())
                .enumerate()
                .with_min_len(4)
                .for_each(|(i, panel)| layout.pack(stored, i, panel));
            release(bytes);
            *matrix = Matrix::Panels { layout, offset };
            offset += size;
        }
        let matrices = &self.matrices;
        self.tables
            .retain(|id, _| !matches!(matrices.get(id), Some(Matrix::Panels { .. })));
        self.account();
        tracing::debug!(
            "repacked {offset} bytes of weights in {:?}",
            start.elapsed()
        );
    }

    /// Lets go of the blocks of matrices whose late panels are all made.
    fn settle(&mut self) {
        let finished = self.finished.load(Ordering::Acquire);
        if finished == self.settled {
            return;
        }
        self.settled = finished;
        let begin = self.panels.ptr().addr();
        for matrix in self.matrices.values_mut() {
            if let Matrix::Late(late) = matrix
                && late.is_finished()
            {
                *matrix = Matrix::Panels {
                    layout: late.layout,
                    offset: late.place(0).addr() - begin,
                };
            }
        }
        self.account();
    }
}
