//! Who makes each value of a plan and how many kernels read it. A pass asks for every kernel and keeps the answers true while it changes
//! the plan: looking through the plan each time would make its time grow as the square of the layers.

use crate::plan::{Kernel, Operand, Plan, PlanValueId, Sink};

/// Makers and readers of a plan's values.
pub(super) struct Flow {
    makers: Vec<Option<usize>>,
    readers: Vec<usize>,
}

impl Flow {
    /// Those of a plan as it stands.
    pub(super) fn of(plan: &Plan) -> Self {
        let mut flow = Self {
            makers: vec![None; plan.values.len()],
            readers: vec![0; plan.values.len()],
        };
        for (at, kernel) in plan.kernels.iter().enumerate() {
            flow.place(kernel, at);
            flow.add_reads(kernel);
        }
        flow
    }

    /// Number of the kernel whose tail stores a value.
    pub(super) fn maker(&self, value: PlanValueId) -> Option<usize> {
        self.makers[value.index()]
    }

    /// How many kernels name a value as an operand.
    pub(super) fn readers(&self, value: PlanValueId) -> usize {
        self.readers[value.index()]
    }

    /// The number from which on all that a kernel reads is made, values in `except` left out; `None`: some value never is.
    pub(super) fn ready(&self, kernel: &Kernel, except: &[PlanValueId]) -> Option<usize> {
        let awaited = values(kernel).filter(|v| !except.contains(v));
        awaited
            .map(|v| self.maker(v))
            .try_fold(0usize, |ready, maker| Some(ready.max(maker? + 1)))
    }

    /// What the kernel stores is made by number `at` from now on.
    pub(super) fn place(&mut self, kernel: &Kernel, at: usize) {
        for tail in kernel.first.iter().chain(&kernel.tails) {
            if let Sink::Value(value) = tail.sink {
                self.makers[value.index()] = Some(at);
            }
        }
    }

    /// Counts a kernel as a reader of its operands.
    pub(super) fn add_reads(&mut self, kernel: &Kernel) {
        for value in values(kernel) {
            self.readers[value.index()] += 1;
        }
    }

    /// Counts it no more: it goes, or its operands change.
    pub(super) fn drop_reads(&mut self, kernel: &Kernel) {
        for value in values(kernel) {
            self.readers[value.index()] -= 1;
        }
    }
}

/// The activations that a kernel reads, each once.
fn values(kernel: &Kernel) -> impl Iterator<Item = PlanValueId> {
    let operands = kernel.operands.iter().enumerate();
    operands.filter_map(move |(i, operand)| match operand {
        Operand::Value(v) if !kernel.operands[..i].contains(operand) => Some(*v),
        _ => None,
    })
}
