//! What can go wrong between a graph and a finished step.

use crate::plan::Exclusion;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A compiler or executor error, naming the kernel, tensor, format or device it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph is not valid.
    #[error(transparent)]
    Graph(#[from] rusty_graph::Error),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] rusty_backend::Error),
    /// A pass left the plan in a state that backends may not see: a defect of the compiler.
    #[error("plan after '{pass}': kernel {kernel}: {reason}")]
    Invalid {
        /// Pass that ran last.
        pass: &'static str,
        /// Kernel name.
        kernel: String,
        /// The invariant that does not hold.
        reason: String,
    },
    /// The model file lacks what the plan needs.
    #[error("{model}: tensor '{tensor}' {reason}")]
    Weight {
        /// Model label.
        model: String,
        /// Canonical tensor name.
        tensor: String,
        /// Missing, wrong shape, format not supported on this device.
        reason: String,
    },
    /// A step asks for more than the executable was bound for.
    #[error("step: {0}")]
    Step(String),
    /// An adapter does not fit a slot.
    #[error("adapter '{adapter}', site {site}: {reason}")]
    Slot {
        /// Adapter name.
        adapter: String,
        /// Canonical site name.
        site: String,
        /// What does not fit.
        reason: String,
    },
    /// The device does not take one of the ways to run a kernel; there may be others.
    #[error("target {target}: kernel {kernel}: {variant}: {reason}")]
    Refused {
        /// Target name.
        target: String,
        /// Kernel name.
        kernel: String,
        /// What is refused.
        variant: Box<Exclusion>,
        /// What the device said.
        reason: String,
    },
    /// The target cannot run a kernel of the plan.
    #[error("target {target}: kernel {kernel}: {reason}")]
    Target {
        /// Target name.
        target: String,
        /// Kernel name.
        kernel: String,
        /// The fact that is missing.
        reason: String,
    },
}
