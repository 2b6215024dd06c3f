//! The kernels of a model for a device that need not be at hand.

use crate::gpu::GpuExecutable;
use crate::{BindOptions, Error, Result, compile, self_test};
use rusty_backend::{DescribedDevice, KernelText, Target};
use rusty_graph::Graph;
use rusty_loader::ModelFile;
use std::sync::Arc;

/// The text of every kernel that a model needs on a GPU of these facts, for all ranges of rows and, where `options` have slots,
/// for adapters, and of those that [`trusted`](crate::trusted) tests it with. No weight is read but vectors.
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
    let plain = BindOptions {
        slots: 0,
        ..options
    };
    for format in self_test::formats(&graph.weights) {
        if let Ok(file) = rusty_loader::random::model(self_test::SHAPE, format) {
            let plan = compile(&rusty_graph::arch::build(&*file)?, target)?;
            GpuExecutable::bind(plan, &*file, device.clone(), plain)?;
        }
    }
    Ok(device.texts())
}
