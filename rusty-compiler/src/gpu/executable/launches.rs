//! A template with what it takes of a step's shape, of this executable's memory and of a device's limits: a launch.

use super::GpuExecutable;
use crate::gpu::arena::{packed_at, shrunk_at, splits_at};
use crate::gpu::kernels::env::BINDINGS;
use crate::gpu::operands::Shape;
use crate::gpu::stage::Template;
use crate::gpu::text::{Kind, info};
use crate::{Error, Result};
use rusty_backend::{DeviceBuffer, Launch};

impl GpuExecutable {
    /// The launch of a template of stage `at` for so many rows of a step.
    pub(super) fn launch(
        &self,
        template: &Template,
        at: usize,
        rows: u32,
        shape: Shape,
    ) -> Result<Launch> {
        let mut scalars = self.scalars(template);
        let mut groups = template.grid.groups(
            rows,
            (shape.tiles, shape.splits),
            self.device.target().max_groups,
        );
        if let Some(cut) = template.depth {
            let cubes = cut.count(rows, self.split_words);
            scalars[cut.arg] = cubes;
            groups[0] *= cubes;
        }
        let buffers = self.buffers(template, at);
        let lengths: [u64; BINDINGS] = buffers.map(|b| b.bytes() / 4);
        let missing = || Error::Invalid {
            pass: "bind",
            kernel: template.label.clone(),
            reason: "was not compiled".into(),
        };
        let pipeline = self.pipelines.get(&template.spec).ok_or_else(missing)?;
        Ok(Launch {
            pipeline: pipeline.clone(),
            buffers: buffers.iter().map(|b| b.whole()).collect(),
            info: info(&scalars, lengths),
            groups,
            label: template.label.clone(),
        })
    }

    /// A template's scalars with places that depend on how large the arena is.
    fn scalars(&self, template: &Template) -> Vec<u32> {
        let mut scalars = template.scalars.clone();
        if let Some(first) = template.shrunk {
            scalars[first] = (shrunk_at(&self.plan, self.split_words) / 4) as u32;
            scalars[first + 1] = self.ranks;
        }
        if let Some(at) = template.packed {
            scalars[at] = (packed_at(&self.plan, self.split_words) / 4) as u32;
        }
        if let Some(at) = template.splits {
            scalars[at] = (splits_at(&self.plan) / 4) as u32;
        }
        scalars
    }

    /// What a template of stage `at` binds.
    fn buffers(&self, template: &Template, at: usize) -> [&DeviceBuffer; BINDINGS] {
        let words = match (self.stages[at].layer, &template.spec.kind) {
            (_, Kind::Choose(_)) => &self.picks,
            (_, Kind::Rows(config)) if config.takes_tokens() => &self.picks,
            (_, Kind::Gemv(config)) if config.shrinks => &self.counters,
            (_, Kind::Matrix(_)) if template.depth.is_some() => &self.counters,
            (Some(layer), _) => self.kv[layer as usize].buffer(template.piece),
            (None, _) => &self.dummies[1],
        };
        let acts = template.shrunk.is_some() || template.spec.adapts_experts();
        let pool = match &self.pools[at] {
            Some(pool) if acts => pool.buffer(),
            _ if template.splits.is_some() && template.depth.is_none() => &self.counters,
            _ => &self.dummies[2],
        };
        let none = &self.dummies[0];
        let weights = template.weights.map_or(none, |c| self.weights.buffer(c));
        [weights, &self.arena, &self.vectors, &self.step, words, pool]
    }
}
