//! From stages to the launches of a step, recorded once per shape.

use super::GpuExecutable;
use super::results::Results;
use crate::Result;
use crate::gpu::adapters::Pool;
use crate::gpu::operands::Shape;
use crate::gpu::residence::ChunkId;
use crate::gpu::stage::When;
use rusty_backend::{Error as DeviceError, Launch, Pending, Recording};
use std::collections::HashMap;

/// Recordings kept; beyond, the one that was used longest ago makes room.
const RECORDINGS: usize = 64;

/// Recordings by the shape of their steps, each with the turn in which it was used last.
#[derive(Default)]
pub(super) struct Recordings {
    by_shape: HashMap<Shape, (u64, Recording)>,
    turn: u64,
    /// Whether it was said that some find no memory.
    told: bool,
}

impl Recordings {
    /// Forgets all of them: what they bind is no more, or kernels are others.
    pub fn clear(&mut self) {
        self.by_shape.clear();
    }

    /// The recording of a shape, which is used now.
    fn of(&mut self, shape: Shape) -> Option<&Recording> {
        self.turn += 1;
        let (used, recording) = self.by_shape.get_mut(&shape)?;
        *used = self.turn;
        Some(recording)
    }

    /// Keeps a recording that is used now.
    fn keep(&mut self, shape: Shape, recording: Recording) {
        if self.by_shape.len() >= RECORDINGS {
            let by_turn = self.by_shape.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = by_turn.map(|(shape, _)| *shape) {
                self.by_shape.remove(&oldest);
            }
        }
        self.turn += 1;
        self.by_shape.insert(shape, (self.turn, recording));
    }

    /// Says, once, that a step is not recorded.
    fn tell(&mut self, error: &DeviceError) {
        if !std::mem::replace(&mut self.told, true) {
            tracing::warn!("{error}; steps that cannot be recorded are launched kernel by kernel");
        }
    }
}

/// Launches of which the first may have to wait for its weights.
struct Segment {
    /// The chunk that has to be there.
    arrives: Option<ChunkId>,
    /// What its window takes up next in the step, once these run, and what after that.
    then: Option<ChunkId>,
    later: Option<ChunkId>,
    launches: Vec<Launch>,
}

impl GpuExecutable {
    /// Enqueues a step of this shape and the way back of its results, where it has some. It is recorded once, unless it has to wait
    /// for weights or a recording, which takes memory that is not booked, finds none.
    pub(super) fn enqueue_shape(
        &mut self,
        shape: Shape,
        results: &Results,
    ) -> Result<Option<Pending>> {
        if let Some(recording) = self.recordings.of(shape).cloned() {
            return self.fetch(Some(&recording), results);
        }
        let mut segments = self.segments(shape)?;
        if segments.iter().any(|s| s.arrives.is_some()) {
            segments.iter().try_for_each(|s| self.run_segment(s))?;
            let pending = self.fetch(None, results)?;
            self.weights.wait(&*self.device)?;
            return Ok(pending);
        }
        let launches = segments.pop().map_or(Vec::new(), |s| s.launches);
        match self.device.record(&launches) {
            Ok(recording) => {
                let pending = self.fetch(Some(&recording), results)?;
                self.recordings.keep(shape, recording);
                Ok(pending)
            }
            Err(error @ DeviceError::OutOfMemory { .. }) => {
                self.recordings.tell(&error);
                self.device.run(&launches)?;
                self.fetch(None, results)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Enqueues a recording where one is given, and the way back of results where there are some.
    fn fetch(&self, behind: Option<&Recording>, results: &Results) -> Result<Option<Pending>> {
        if results.is_empty() {
            behind.map_or(Ok(()), |recording| self.device.submit(recording))?;
            return Ok(None);
        }
        let ranges = results.ranges(&self.picks, &self.arena);
        Ok(Some(self.device.fetch(behind, &ranges)?))
    }

    fn run_segment(&mut self, segment: &Segment) -> Result<()> {
        if let Some(chunk) = segment.arrives {
            self.weights.arrive(chunk, &*self.device)?;
        }
        self.device.run(&segment.launches)?;
        if let Some(later) = segment.later {
            self.weights.expect(later);
        }
        match segment.then {
            Some(next) => self.weights.arrive(next, &*self.device),
            None => Ok(()),
        }
    }

    /// The launches of a step of this shape: one segment where all weights lie on the device.
    fn segments(&self, shape: Shape) -> Result<Vec<Segment>> {
        let mut launches = Vec::new();
        for at in 0..self.stages.len() {
            self.stage_launches(at, shape, &mut launches)?;
        }
        let mut segments: Vec<Segment> = Vec::new();
        for (launch, chunk) in launches {
            let arrives = chunk.filter(|c| self.weights.waits(*c));
            match segments.last_mut() {
                Some(last) if arrives.is_none() || arrives == last.arrives => {
                    last.launches.push(launch);
                }
                _ => segments.push(Segment {
                    arrives,
                    then: None,
                    later: None,
                    launches: vec![launch],
                }),
            }
        }
        for at in 0..segments.len() {
            let window = |s: &Segment| s.arrives.and_then(|c| self.weights.window(c));
            let Some(own) = window(&segments[at]) else {
                continue;
            };
            let behind = segments[at + 1..].iter().filter(|s| window(s) == Some(own));
            let mut behind = behind.filter_map(|s| s.arrives);
            let then = behind.next().filter(|n| Some(*n) != segments[at].arrives);
            let later = behind.next();
            (segments[at].then, segments[at].later) = (then, later);
        }
        Ok(segments)
    }

    fn stage_launches(
        &self,
        at: usize,
        shape: Shape,
        launches: &mut Vec<(Launch, Option<ChunkId>)>,
    ) -> Result<()> {
        let stage = &self.stages[at];
        let rows = if stage.selected {
            shape.selected
        } else {
            shape.rows
        };
        if rows == 0 {
            return Ok(());
        }
        let adapted = shape.adapted && !stage.adapted.is_empty() && !self.is_left_alone(at);
        let variants = if adapted {
            &stage.adapted
        } else {
            &stage.plain
        };
        // The last variant reaches to the symbol's maximum, beyond which only rounded counts can lie.
        let last = variants.last().map_or(0, |choice| *choice.rows.end());
        for choice in variants {
            if is_now(choice.when, shape) && choice.rows.contains(&rows.min(last)) {
                for template in choice.launched(shape.adds_splits) {
                    let launch = self.launch(template, at, rows, shape)?;
                    launches.push((launch, template.weights));
                }
            }
        }
        Ok(())
    }

    /// Whether a stage is of experts or heads that no adapter which is attached changes.
    fn is_left_alone(&self, at: usize) -> bool {
        self.stages[at].is_of_experts() && self.pools[at].as_ref().is_none_or(Pool::is_empty)
    }

    /// Which stages are; what is recorded holds as long as they stay the same.
    pub(super) fn left_alone(&self) -> Vec<bool> {
        let stages = 0..self.stages.len();
        stages.map(|at| self.is_left_alone(at)).collect()
    }
}

/// Whether steps of a shape have what is launched then.
pub(super) fn is_now(when: When, shape: Shape) -> bool {
    match when {
        When::Always => true,
        When::Decode(decode) => decode == shape.decode,
        When::Tiles => shape.tiles > 0,
        When::Alone => shape.splits > 0,
        When::ArgMax => shape.argmax,
        When::Hidden => shape.hidden,
    }
}

#[cfg(test)]
mod tests;
