//! A graph compiled for a device and bound to weights, pages and adapter slots.

use crate::adapters::Registry;
use crate::core::Core;
use crate::engine::EngineOptions;
use crate::{Error, Result};
use rusty_backend::Device;
use rusty_compiler::{BindOptions, Plan};
use rusty_graph::Graph;
use rusty_loader::ModelFile;

/// Context where nothing else is asked for.
const DEFAULT_CONTEXT: usize = 4096;

/// A model on a device.
pub(crate) struct Bound {
    pub(crate) core: Core,
    pub(crate) context: usize,
    pub(crate) device: String,
}

impl Bound {
    /// Checks a sample of the weights and that the device computes right, compiles the graph for the device that is asked for and binds it; `tuning`
    /// is told how far measuring kernels has come.
    ///
    /// # Errors
    /// Names the file, tensor, option or device that is wrong.
    pub(crate) fn new(
        file: &dyn ModelFile,
        graph: &Graph,
        options: &EngineOptions,
        tuning: &dyn Fn(u64, u64),
    ) -> Result<Self> {
        rusty_loader::integrity::verify(file)?;
        let device = Device::open_within(&options.device, options.threads, options.gpu_memory)?;
        let mut target =
            rusty_compiler::trusted(&device, graph, options.kv, options.adapter_slots > 0)?;
        if !options.matrix_units {
            target.matrix_tiles.clear();
        }
        let plan = rusty_compiler::compile(graph, &target)?;
        let context = context(&plan, options, file.label())?;
        let pages = BindOptions::pages_for(context)
            .saturating_mul(u32::try_from(options.sessions.max(1)).unwrap_or(u32::MAX));
        let bind = BindOptions {
            pages,
            kv: options.kv,
            slots: options.adapter_slots,
        };
        let (rows, outputs) = (plan.row_budget(), plan.output_budget());
        let executable = match options.autotune {
            true => rusty_compiler::bind_tuned(plan, file, &device, &bind, tuning)?,
            false => rusty_compiler::bind(plan, file, &device, &bind)?,
        };
        let adapters = Registry::new(options.adapter_slots, options.adapter_budget);
        Ok(Self {
            core: Core::new(executable, pages, rows, outputs, adapters),
            context,
            device: device.to_string(),
        })
    }
}

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
