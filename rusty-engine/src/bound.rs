//! A graph compiled for a device and bound to weights, pages and adapter slots.

use crate::adapters::{Registry, is_full};
use crate::core::Core;
use crate::engine::EngineOptions;
use crate::{Error, Result};
use rusty_backend::{Device, DeviceBuffer, Owner};
use rusty_compiler::{BindOptions, Executable, Plan};
use rusty_graph::Graph;
use rusty_loader::ModelFile;
use std::sync::Arc;

/// Context where nothing else is asked for.
const DEFAULT_CONTEXT: usize = 4096;

/// A model on a device.
pub(crate) struct Bound {
    pub(crate) core: Core,
    pub(crate) device: String,
}

impl Bound {
    /// Checks a sample of the weights, compiles the graph for the device that is asked for and binds it, checking that its kernels compute
    /// right; `tuning` is told how far measuring kernels has come.
    ///
    /// # Errors
    /// Names the file, tensor, option or device that is wrong.
    pub(crate) fn new(
        file: &dyn ModelFile,
        graph: &Arc<Graph>,
        options: &EngineOptions,
        tuning: &dyn Fn(u64, u64),
    ) -> Result<Self> {
        rusty_loader::integrity::verify(file)?;
        let device = Device::open_within(&options.device, options.threads, options.gpu_memory)?;
        let plan = plan(graph, &device, options.single_precision)?;
        let context = context(&plan, options, file.label())?;
        let pages = BindOptions::pages_for(context)
            .saturating_mul(u32::try_from(options.sessions.max(1)).unwrap_or(u32::MAX));
        let room = BindOptions {
            pages,
            kv: options.kv,
            slots: options.adapter_slots,
        };
        let (rows, outputs) = (plan.row_budget(), plan.output_budget());
        let measuring = options.autotune.then_some(tuning);
        let bind = |plan| bind(plan, file, &device, &room, measuring);
        // Held while weights are placed; where they cannot do without, adapters find what is left.
        let executable = match free(&device, options.adapter_room) {
            None => bind(plan)?,
            Some(held) => match bind(plan.clone()) {
                Err(error) if is_full(&error) => {
                    tracing::debug!("no room is left for adapters: {error}");
                    drop(held);
                    bind(plan)?
                }
                bound => bound?,
            },
        };
        let (slots, budget) = (options.adapter_slots, options.adapter_budget);
        let adapters = Registry::new(slots, budget, graph.clone());
        let graph = graph.clone();
        Ok(Self {
            core: Core::new(graph, context, executable, pages, rows, outputs, adapters),
            device: device.to_string(),
        })
    }
}

/// So many bytes of a GPU's memory, or as many as one buffer can have, which nobody else gets until they are dropped; none where there
/// are not so many.
fn free(device: &Device, bytes: u64) -> Option<DeviceBuffer> {
    let gpu = device.gpu().filter(|_| bytes > 0)?;
    let bytes = bytes.min(gpu.target().max_buffer_bytes);
    gpu.alloc(bytes, Owner::Adapters, "room for adapters").ok()
}

/// The plan of a graph for a device, or for the target of a package that the device serves, without kernels that round inputs or weights
/// where a GPU is to multiply in `single_precision`.
///
/// # Errors
/// The device cannot run the graph.
pub fn plan(
    graph: &Graph,
    device: &Device,
    single_precision: bool,
) -> rusty_compiler::Result<Plan> {
    let own = device.target();
    let wanted = match single_precision {
        true => own.in_single_precision(),
        false => own.clone(),
    };
    let target = rusty_compiler::planning_facts(&wanted);
    rusty_compiler::compile(graph, &target)
}

/// Binds a plan to weights and a device, without kernels that go wrong there ([`rusty_compiler::bind_tested`]). Given `measuring`,
/// choices among kernels that are not known yet are measured first, unless they come from a package; it is told how many of how many
/// measurements are made.
///
/// # Errors
/// Names the weight or kernel that is wrong, or what the device lacks.
pub fn bind(
    plan: Plan,
    file: &dyn ModelFile,
    device: &Device,
    options: &BindOptions,
    measuring: Option<&dyn Fn(u64, u64)>,
) -> rusty_compiler::Result<Box<dyn Executable>> {
    rusty_compiler::bind_tested(plan, file, device, options, measuring)
}

/// Tokens of context per session: what is asked for, or what the plan's model was trained with.
fn context(plan: &Plan, options: &EngineOptions, label: &str) -> Result<usize> {
    let limit = plan.context as usize;
    match options.context {
        None => Ok(limit.min(DEFAULT_CONTEXT)),
        Some(0) => Err(Error::Request("a context of 0 tokens holds nothing".into())),
        Some(asked) => {
            if asked > limit {
                tracing::warn!(
                    "{label}: a context of {asked} tokens is beyond the trained {limit}"
                );
            }
            Ok(asked)
        }
    }
}
