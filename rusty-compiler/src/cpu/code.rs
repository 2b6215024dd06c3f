//! Kernels of a plan as the CPU runs them, and the room that they need.

use super::attend::Attend;
use super::contract::Contract;
use super::experts::{Experts, Route};
use super::kv::PageShape;
use super::largest::Largest;
use super::rows::Rows;
use super::stream::Next;
use super::weights::Weights;
use crate::Result;
use crate::plan::{Anchor, Kernel, Plan};

/// A kernel, ready to run.
pub(super) enum Code {
    Contract(Contract),
    Rows(Rows),
    Largest(Largest),
    Attend(Attend),
    Route(Route),
    Experts(Experts),
}

/// All kernels of a plan, and what the widest of them need.
pub(super) fn codes(plan: &Plan, weights: &Weights, threads: usize) -> Result<(Vec<Code>, Needs)> {
    let mut codes = Vec::with_capacity(plan.kernels.len());
    let mut needs = Needs::default();
    for (i, kernel) in plan.kernels.iter().enumerate() {
        let code = code(plan, kernel, weights, threads, 2 * i)?;
        needs.add(&code, plan, kernel);
        codes.push(code);
    }
    link(&mut codes);
    Ok((codes, needs))
}

/// Resolves a kernel; it owns `counter` and the counter behind it.
fn code(
    plan: &Plan,
    kernel: &Kernel,
    weights: &Weights,
    threads: usize,
    counter: usize,
) -> Result<Code> {
    Ok(match kernel.anchor {
        Anchor::Contract { .. } => {
            Code::Contract(Contract::new(plan, kernel, weights, threads, counter)?)
        }
        Anchor::Map | Anchor::Gather { .. } | Anchor::SelectRows { .. } => {
            Code::Rows(Rows::new(plan, kernel, weights)?)
        }
        Anchor::Route { .. } => Code::Route(Route::new(plan, kernel)?),
        Anchor::Experts { .. } => {
            Code::Experts(Experts::new(plan, kernel, weights, threads, counter)?)
        }
        Anchor::ArgMax { .. } => Code::Largest(Largest::new(plan, kernel)?),
        Anchor::Attention { .. } => Code::Attend(Attend::new(plan, kernel, weights, counter)?),
    })
}

/// Tells every contraction which one follows it.
fn link(codes: &mut [Code]) {
    let mut next = None;
    for code in codes.iter_mut().rev() {
        if let Code::Contract(contract) = code {
            contract.next = next.replace(Next::new(contract));
        }
    }
}

/// Sizes that depend on the widest kernel.
#[derive(Default)]
pub(super) struct Needs {
    pub(super) k: usize,
    pub(super) starts: usize,
    pub(super) parts: usize,
    pub(super) ops: usize,
    pub(super) lanes: usize,
    pub(super) row_words: usize,
    pub(super) attention: usize,
    pub(super) padded: usize,
}

impl Needs {
    /// Makes room for a kernel.
    fn add(&mut self, code: &Code, plan: &Plan, kernel: &Kernel) {
        let (ops, lanes) = match code {
            Code::Contract(c) => {
                self.k = self.k.max(c.k());
                self.starts = self.starts.max(c.forms.starts());
                self.parts = self.parts.max(c.part_count());
                c.register_need()
            }
            Code::Rows(r) => {
                self.row_words = self.row_words.max(r.row_words());
                r.register_need()
            }
            Code::Attend(a) => {
                if let Anchor::Attention { spec, .. } = &kernel.anchor {
                    let layer = &plan.kv[spec.layer as usize];
                    let padded = PageShape::result_of(layer);
                    self.padded = self.padded.max(padded);
                    self.attention = self.attention.max(a.scratch_words(padded));
                }
                a.register_need()
            }
            Code::Experts(e) => {
                self.k = self.k.max(e.input_width());
                self.starts = self.starts.max(e.forms.starts());
                self.parts = self.parts.max(1);
                (0, 0)
            }
            Code::Largest(_) | Code::Route(_) => (0, 0),
        };
        self.ops = self.ops.max(ops);
        self.lanes = self.lanes.max(lanes);
    }
}
