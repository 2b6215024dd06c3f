//! The pipeline from a graph to a plan, on one screen.
//!
//! Every pass is pure on its input and named; the verifier runs after each. Passes follow op classes and
//! data flow, never a model's name, and take time as the graph's length: what they ask of the plan they keep beside it.

mod flow;
mod fuse_heads;
mod fuse_prologues;
mod fuse_residuals;
mod fuse_selection;
mod fuse_tails;
mod lower;
mod merge_maps;
mod merge_siblings;
mod plan_memory;
pub(crate) mod rewrite;
pub(crate) mod select;

use crate::plan::{Plan, Violation, verify};
use crate::{Error, Result};
use rusty_backend::Target;
use rusty_graph::Graph;

/// Compiles a graph for a target. Needs no device.
///
/// # Errors
/// [`Error::Graph`] for an invalid graph, [`Error::Target`] where no rule covers a kernel, [`Error::Invalid`] for a defect
/// of a pass.
pub fn compile(graph: &Graph, target: &Target) -> Result<Plan> {
    compile_observed(graph, target, &mut |_, _| {})
}

/// As [`compile`], showing the plan after each named pass to an observer.
///
/// # Errors
/// As [`compile`].
pub fn compile_observed(
    graph: &Graph,
    target: &Target,
    observe: &mut dyn FnMut(&'static str, &Plan),
) -> Result<Plan> {
    rusty_graph::verify(graph)?;
    let mut plan = lower::lower(graph, target)?;
    let mut step = |name: &'static str, next: Plan| -> Result<Plan> {
        verify(&next).map_err(|Violation { kernel, reason }| Error::Invalid {
            pass: name,
            kernel,
            reason,
        })?;
        observe(name, &next);
        Ok(next)
    };
    plan = step("lower", plan)?;
    // Siblings first: a norm has one reader, and can fold into it, only once Q, K and V are one kernel.
    plan = step("merge-siblings", merge_siblings::run(plan, target))?;
    // Tails before prologues: an activation that becomes part of a tail is no longer a map to fold forward.
    plan = step("fuse-tails", fuse_tails::run(plan, target))?;
    plan = step("fuse-prologues", fuse_prologues::run(plan))?;
    // Maps last: what is still a map after both fusions has no better home.
    plan = step("merge-maps", merge_maps::run(plan))?;
    plan = step("fuse-heads", fuse_heads::run(plan, target))?;
    plan = step("fuse-residuals", fuse_residuals::run(plan, target))?;
    plan = step("fuse-selection", fuse_selection::run(plan, target))?;
    plan = step("select", select::run(plan, target)?)?;
    step("plan-memory", plan_memory::run(plan))
}
