//! Kernels chosen anew for weights that lie where they are.

use super::GpuExecutable;
use crate::gpu::lower::stages;
use crate::gpu::prepare::{Pipelines, compile};
use crate::gpu::stage::Stage;
use crate::gpu::weights::WeightStore;
use crate::passes::select;
use crate::plan::{Plan, Tuning};
use crate::{KvFormat, Result};
use rusty_backend::GpuDevice;

impl GpuExecutable {
    /// Chooses kernels anew; weights, pages and attached adapters stay where they are.
    ///
    /// # Errors
    /// As [`GpuExecutable::bind`]; the kernels are then those of before.
    pub fn retune(&mut self, tuning: Tuning) -> Result<()> {
        let (plan, stages) = self.tuned(tuning, self.options.slots > 0)?;
        let pipelines = compile(&stages, &plan.target, &*self.device, &self.pipelines)?;
        self.adopt(plan, stages, pipelines);
        Ok(())
    }

    /// Takes over what [`GpuExecutable::tuned`] gave, compiled.
    pub(in crate::gpu) fn adopt(&mut self, plan: Plan, stages: Vec<Stage>, pipelines: Pipelines) {
        self.recordings.clear();
        (self.plan, self.stages, self.pipelines) = (plan, stages, pipelines);
    }

    pub(in crate::gpu) fn pipelines(&self) -> &Pipelines {
        &self.pipelines
    }

    pub(in crate::gpu) fn device(&self) -> &dyn GpuDevice {
        &*self.device
    }

    /// Storage of keys and values.
    pub(in crate::gpu) fn kv(&self) -> KvFormat {
        self.options.kv
    }

    /// Pages of keys and values.
    pub(in crate::gpu) fn pages(&self) -> u32 {
        self.options.pages
    }

    /// The plan and its launches as another tuning has them.
    pub(in crate::gpu) fn tuned(
        &self,
        tuning: Tuning,
        adapters: bool,
    ) -> Result<(Plan, Vec<Stage>)> {
        let mut plan = self.plan.clone();
        plan.tuning = tuning;
        select::again(&mut plan)?;
        let mut store = WeightStore::known(&plan, &*self.device, self.chunks.clone());
        let stages = stages(&plan, self.pages, adapters, &self.places, &mut store)?;
        Ok((plan, stages))
    }
}
