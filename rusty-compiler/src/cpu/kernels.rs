//! Kernels of a plan as the CPU runs them, and the room that they need.

use super::attention::tasks::Attend;
use super::contract::Contract;
use super::experts::Experts;
use super::kv::PageShape;
use super::largest::Largest;
use super::route::Route;
use super::rows::Rows;
use super::stream::Next;
use super::weights::Weights;
use crate::Result;
use crate::plan::{Anchor, Kernel, Plan};

/// A kernel, ready to run.
pub(super) enum CpuKernel {
    Contract(Contract),
    Rows(Rows),
    Largest(Largest),
    Attend(Attend),
    Route(Route),
    Experts(Experts),
}

/// All kernels of a plan, and what the widest of them need.
pub(super) fn cpu_kernels(
    plan: &Plan,
    weights: &Weights,
    threads: usize,
) -> Result<(Vec<CpuKernel>, Needs)> {
    let mut kernels = Vec::with_capacity(plan.kernels.len());
    let mut needs = Needs::default();
    for (i, planned) in plan.kernels.iter().enumerate() {
        let kernel = CpuKernel::new(plan, planned, weights, threads, 2 * i)?;
        needs.add(&kernel, plan, planned);
        kernels.push(kernel);
    }
    link(&mut kernels);
    Ok((kernels, needs))
}

impl CpuKernel {
    /// Resolves a kernel; it owns `counter` and the counter behind it.
    fn new(
        plan: &Plan,
        kernel: &Kernel,
        weights: &Weights,
        threads: usize,
        counter: usize,
    ) -> Result<Self> {
        Ok(match kernel.anchor {
            Anchor::Contract { .. } => {
                Self::Contract(Contract::new(plan, kernel, weights, threads, counter)?)
            }
            Anchor::Map | Anchor::Gather { .. } | Anchor::SelectRows { .. } => {
                Self::Rows(Rows::new(plan, kernel, weights)?)
            }
            Anchor::Route { .. } => Self::Route(Route::new(plan, kernel)?),
            Anchor::Experts { .. } => {
                Self::Experts(Experts::new(plan, kernel, weights, threads, counter)?)
            }
            Anchor::ArgMax { .. } => Self::Largest(Largest::new(plan, kernel)?),
            Anchor::Attention { .. } => Self::Attend(Attend::new(plan, kernel, weights, counter)?),
        })
    }
}

/// Tells every contraction which one follows it.
fn link(kernels: &mut [CpuKernel]) {
    let mut next = None;
    for kernel in kernels.iter_mut().rev() {
        if let CpuKernel::Contract(contract) = kernel {
            contract.next = next.replace(Next::new(contract));
        }
    }
}

/// Sizes that depend on the widest kernel.
#[derive(Default)]
pub(super) struct Needs {
    pub(super) k: usize,
    pub(super) starts: usize,
    /// Whether inputs are rounded to brain floats.
    pub(super) brains: bool,
    pub(super) parts: usize,
    pub(super) ops: usize,
    pub(super) lanes: usize,
    pub(super) row_words: usize,
    pub(super) attention: usize,
    pub(super) padded: usize,
}

impl Needs {
    /// Makes room for a kernel.
    fn add(&mut self, kernel: &CpuKernel, plan: &Plan, planned: &Kernel) {
        let (ops, lanes) = match kernel {
            CpuKernel::Contract(c) => {
                self.k = self.k.max(c.k);
                self.starts = self.starts.max(c.forms.starts());
                self.brains |= c.forms.brains;
                self.parts = self.parts.max(c.parts.len());
                c.register_need()
            }
            CpuKernel::Rows(r) => {
                self.row_words = self.row_words.max(r.row_words());
                r.register_need()
            }
            CpuKernel::Attend(a) => {
                if let Anchor::Attention { spec, .. } = &planned.anchor {
                    let layer = &plan.kv[spec.layer as usize];
                    let padded = PageShape::result_of(layer);
                    self.padded = self.padded.max(padded);
                    self.attention = self.attention.max(a.scratch_words(padded));
                }
                a.register_need()
            }
            CpuKernel::Experts(e) => {
                self.k = self.k.max(e.input_width());
                self.starts = self.starts.max(e.forms.starts());
                self.brains |= e.forms.brains;
                self.parts = self.parts.max(e.parts.len());
                e.register_need()
            }
            CpuKernel::Largest(_) | CpuKernel::Route(_) => (0, 0),
        };
        self.ops = self.ops.max(ops);
        self.lanes = self.lanes.max(lanes);
    }
}
