//! The kernels of a model for a device that need not be at hand.

use crate::gpu::GpuExecutable;
use crate::{BindOptions, Error, Result, compile};
use rusty_backend::{DescribedDevice, KernelText, Target};
use rusty_graph::Graph;
use rusty_loader::ModelFile;
use std::sync::Arc;

/// What tells builds apart that may make other kernels: a package of one is of no use to another.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("RUSTY_KERNELS"));

/// The text of every kernel that a model needs on a GPU of these facts, for all ranges of rows and, where `options` have slots,
/// for adapters. No weight is read but vectors.
///
/// # Errors
/// [`Error::Target`] for a CPU, whose kernels are part of the program, and for what a target cannot run.
pub fn kernel_texts(
    graph: &Graph,
    file: &dyn ModelFile,
    target: &Target,
    options: BindOptions,
) -> Result<Vec<KernelText>> {
    if target.is_cpu() {
        return Err(Error::Target {
            target: target.name.clone(),
            kernel: "all".into(),
            reason: "kernels of CPUs are part of the program: there is nothing to compile".into(),
        });
    }
    let device = Arc::new(DescribedDevice::new(target.clone()));
    GpuExecutable::bind(compile(graph, target)?, file, device.clone(), options)?;
    Ok(device.texts())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// On devices that serve a package's target, plans for it find all their kernels there, into however few pieces weights are cut.
    #[test]
    fn packages_have_what_devices_that_serve_them_run() {
        let file = rusty_loader::random::model("qwen3-tiny", "q4_0").expect("random");
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let options = BindOptions {
            pages: 1,
            kv: Default::default(),
            slots: 1,
        };
        for (made_for, here) in [("vulkan", "llvmpipe"), ("cuda:sm_90", "h200")] {
            let mut wanted = Target::named(made_for).expect(made_for);
            // Less than matrices take.
            wanted.max_binding_bytes = 128 << 10;
            let texts = kernel_texts(&graph, &*file, &wanted, options).expect("texts");
            let packed: BTreeSet<String> = texts.into_iter().map(|t| t.key).collect();
            let facts = Target::named(here).expect(here);
            facts.serves(&wanted).expect(here);
            let plan = compile(&graph, &facts.planned_as(&wanted)).expect("plan");
            let device = Arc::new(DescribedDevice::new(facts));
            GpuExecutable::bind(plan, &*file, device.clone(), options).expect("bound");
            assert!(device.texts().len() > 10, "{here}");
            for text in device.texts() {
                assert!(packed.contains(&text.key), "{here}: {}", text.key);
            }
        }
    }
}
