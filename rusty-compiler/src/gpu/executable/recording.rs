//! From stages to the launches of a step, recorded once per shape.

use super::GpuExecutable;
use crate::gpu::kernels::env::BINDINGS;
use crate::gpu::operands::Shape;
use crate::gpu::prepare::{shrunk_at, splits_at};
use crate::gpu::stage::{Template, When};
use crate::gpu::text::{Kind, info};
use crate::{Error, Result};
use rusty_backend::{Launch, Recording};

/// Recordings kept; beyond, all are made anew as they are needed.
const RECORDINGS: usize = 64;

impl GpuExecutable {
    /// The launches of a step of this shape, recorded; made on first use.
    pub(super) fn recording(&mut self, shape: Shape) -> Result<Recording> {
        if let Some(recording) = self.recordings.get(&shape) {
            return Ok(recording.clone());
        }
        let mut launches = Vec::new();
        for at in 0..self.stages.len() {
            self.stage_launches(at, shape, &mut launches)?;
        }
        let recording = self.device.record(&launches)?;
        if self.recordings.len() >= RECORDINGS {
            self.recordings.clear();
        }
        self.recordings.insert(shape, recording.clone());
        Ok(recording)
    }

    fn stage_launches(&self, at: usize, shape: Shape, launches: &mut Vec<Launch>) -> Result<()> {
        let stage = &self.stages[at];
        let rows = if stage.selected {
            shape.selected
        } else {
            shape.rows
        };
        if rows == 0 {
            return Ok(());
        }
        let adapted = shape.adapted && !stage.adapted.is_empty();
        let variants = if adapted {
            &stage.adapted
        } else {
            &stage.plain
        };
        // The last variant reaches to the symbol's maximum, beyond which only rounded counts can lie.
        let last = variants.last().map_or(0, |(range, _, _)| range.1);
        for (range, when, templates) in variants {
            let now = match when {
                When::Always => true,
                When::Decode(decode) => *decode == shape.decode,
                When::ArgMax => shape.argmax,
                When::Hidden => shape.hidden,
            };
            if now && (range.0..=range.1).contains(&rows.min(last)) {
                for template in templates {
                    launches.push(self.launch(template, at, rows, shape)?);
                }
            }
        }
        Ok(())
    }

    fn launch(&self, template: &Template, at: usize, rows: u32, shape: Shape) -> Result<Launch> {
        let stage = &self.stages[at];
        let mut scalars = template.scalars.clone();
        if let Some(first) = template.shrunk {
            scalars[first] = (shrunk_at(&self.plan, self.split_words) / 4) as u32;
            scalars[first + 1] = self.ranks;
        }
        if let Some(at) = template.splits {
            scalars[at] = (splits_at(&self.plan) / 4) as u32;
        }
        let words = match (stage.layer, &template.spec.kind) {
            (_, Kind::Choose(_)) => &self.picks,
            (Some(layer), _) => &self.kv[layer as usize],
            (None, _) => &self.dummies[1],
        };
        let pool = match (&self.pools[at], template.shrunk) {
            (Some(pool), Some(_)) => pool.buffer(),
            _ if template.splits.is_some() => &self.counters,
            _ => &self.dummies[2],
        };
        let buffers = [
            template.weights.as_ref().unwrap_or(&self.dummies[0]),
            &self.arena,
            &self.vectors,
            &self.step,
            words,
            pool,
        ];
        let lengths: [u64; BINDINGS] = buffers.map(|b| b.bytes() / 4);
        let pipeline = self
            .pipelines
            .get(&template.spec)
            .ok_or_else(|| Error::Invalid {
                pass: "bind",
                kernel: template.label.clone(),
                reason: "was not compiled".into(),
            })?;
        Ok(Launch {
            pipeline: pipeline.clone(),
            buffers: buffers.iter().map(|b| b.whole()).collect(),
            info: info(&scalars, lengths),
            groups: template.grid.groups(
                rows,
                (shape.tiles, shape.splits),
                self.device.target().max_groups,
            ),
            label: template.label.clone(),
        })
    }
}
