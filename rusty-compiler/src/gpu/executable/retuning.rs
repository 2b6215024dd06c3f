//! Kernels chosen anew for weights that lie where they are.

use super::{GpuExecutable, pieces_of};
use crate::gpu::attention_cuts::Room;
use crate::gpu::lower::stages;
use crate::gpu::prepare::{Pipelines, attention_room, compile};
use crate::gpu::stage::Stage;
use crate::gpu::weights::WeightStore;
use crate::passes::select;
use crate::plan::{Exclusion, Plan, Tuning};
use crate::{BindOptions, Error, Result};
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

    /// Chooses kernels anew without some that went wrong, and without those in their stead that the device refuses.
    ///
    /// # Errors
    /// [`Error::Target`] where nothing is left; [`Error::Device`] where the device fails.
    pub(crate) fn do_without(&mut self, mut wrong: Vec<Exclusion>) -> Result<()> {
        let mut plan = self.plan.clone();
        loop {
            select::without(&mut plan, wrong)?;
            let stages = self.lowered(&plan, self.options.slots > 0)?;
            // The same kernels have other texts where halves are converted otherwise.
            let none = Pipelines::new();
            let known = match plan.target.f16 == self.plan.target.f16 {
                true => &self.pipelines,
                false => &none,
            };
            match compile(&stages, &plan.target, &*self.device, known) {
                Err(Error::Refused { variant, .. }) => wrong = vec![*variant],
                compiled => {
                    let pipelines = compiled?;
                    // Tiles of attention may be others, and rows alone may have no kernel. What cubes leave each other takes as much of the arena as
                    // before: shares of a depth keep to that, splits of attention are alike.
                    (_, self.room) = attention_room(&stages, &plan);
                    self.adopt(plan, stages, pipelines);
                    return Ok(());
                }
            }
        }
    }

    /// Takes over what [`GpuExecutable::tuned`] gave, compiled.
    pub(in crate::gpu) fn adopt(&mut self, plan: Plan, stages: Vec<Stage>, pipelines: Pipelines) {
        self.recordings.clear();
        (self.plan, self.stages, self.pipelines) = (plan, stages, pipelines);
    }

    pub(in crate::gpu) fn pipelines(&self) -> &Pipelines {
        &self.pipelines
    }

    pub(crate) fn device(&self) -> &dyn GpuDevice {
        &*self.device
    }

    /// What it was bound for.
    pub(crate) fn options(&self) -> &BindOptions {
        &self.options
    }

    /// What attention's kernels take of a step.
    pub(in crate::gpu) fn room(&self) -> Room {
        self.room
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
        let stages = self.lowered(&plan, adapters)?;
        Ok((plan, stages))
    }

    /// The launches of a plan of the same weights.
    fn lowered(&self, plan: &Plan, adapters: bool) -> Result<Vec<Stage>> {
        let mut store = WeightStore::known(plan, &*self.device, self.chunks.clone());
        let pieces = pieces_of(&self.kv);
        let pages = (self.pages, &pieces[..]);
        stages(plan, pages, adapters, &self.places, &mut store)
    }
}
