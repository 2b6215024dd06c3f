//! Whether kernels are right: each that the plan takes is launched once, as steps launch it but on few rows of random inputs, and what
//! it leaves is compared with what the oracle's arithmetic makes of the same inputs and weights.
//!
//! Weights are the model's, where steps find them; of results of many lanes some are compared, from both ends and between. A kernel that
//! several layers share is tried on the first of them. Attention of rows alone is tried as it makes its heads itself, and behind the launch
//! that makes them for all rows, as tiles are.
//!
//! Not tested: tokens that the step before chose; embeddings that adapters change; tables of adapters in other formats than f16 and q8_0; windows of more keys than [`rows`]
//! have.

pub(super) mod adapters;
mod comparison;
mod inputs;
mod reference;
mod rows;

use super::GpuExecutable;
use super::recording::is_now;
use crate::gpu::operands::{Encoded, Shape, encode};
use crate::gpu::stage::{Choice, Template, When};
use crate::gpu::text::Kind;
use crate::plan::Anchor;
use crate::self_test::{Difference, Verdict, Verdicts, Wrong, is_refusal};
use crate::slots::SlotData;
use crate::{Error, Executable, Result, SlotId};
use inputs::Inputs;
use reference::{Expected, Reference};
use rows::TrialRows;
use rusty_backend::Error as DeviceError;
use rusty_loader::ModelFile;
use std::sync::Arc;

/// Launches of a stage: with adapters or without, by their number.
type Place = (usize, bool, usize);

/// A choice that is tried.
struct Trial<'a> {
    at: usize,
    choice: Choice,
    /// What makes attention's heads before it where steps have that launch.
    heads: Option<Choice>,
    rows: TrialRows,
    file: &'a dyn ModelFile,
}

impl Trial<'_> {
    /// The [distinct] launches of a step of this shape, in order; none where the step does not take the choice.
    fn launches(&self, shape: Shape) -> Option<Vec<Template>> {
        // No trial's rows want a hidden state.
        let taken = self.choice.when == When::Hidden || is_now(self.choice.when, shape);
        let heads = self.heads.iter().filter(|heads| is_now(heads.when, shape));
        let choices = heads.chain([&self.choice]);
        taken.then(|| distinct(choices.flat_map(|c| c.launched(shape.adds_splits))))
    }
}

impl GpuExecutable {
    /// The kernels of the plan that go wrong, tried where `verdicts` tell nothing of them yet. To be asked before the first step.
    ///
    /// # Errors
    /// [`Error::Weight`] where the file lacks one; [`Error::Device`] where the device fails.
    pub(crate) fn wrong_kernels(
        &mut self,
        file: &dyn ModelFile,
        verdicts: &mut Verdicts,
    ) -> Result<Vec<Wrong>> {
        let mut wrong = Vec::new();
        let mut tried = 0;
        for place in self.choices() {
            let is_wrong = |c: &Choice| wrong.iter().any(|w: &Wrong| w.variant == c.variant);
            // Behind heads that are wrong nothing can be right: it is tried behind others. What plans are to do without anyway may lose the
            // device again.
            if self.heads(place).is_some_and(is_wrong) || is_wrong(self.choice(place)) {
                continue;
            }
            let key = self.key(place);
            let verdict = match verdicts.of(&key) {
                Some(verdict) => verdict,
                None => {
                    let found = self.verdict(file, place);
                    if let Err(Error::Device(DeviceError::Lost { .. })) = found {
                        // The next process does without, or it would lose the device at the same place.
                        verdicts.add(key.clone(), Some(Difference::REFUSED));
                    }
                    let Some(verdict) = found? else {
                        continue;
                    };
                    tried += 1;
                    verdicts.add(key, verdict);
                    verdict
                }
            };
            if let Some(by) = verdict {
                wrong.push(Wrong {
                    variant: self.choice(place).variant.clone(),
                    kernel: self.plan.kernels[place.0].name.clone(),
                    by,
                });
            }
        }
        if tried > 0 {
            tracing::debug!(tried, wrong = wrong.len(), "kernels were compared");
            // A wrong kernel may not have left them as it found them.
            let zeros = vec![0u8; self.counters.bytes() as usize];
            self.device.write(&self.counters, 0, &zeros)?;
        }
        Ok(wrong)
    }

    /// All choices.
    fn choices(&self) -> Vec<Place> {
        let stages = self.stages.iter().enumerate();
        let of = stages.flat_map(|(at, stage)| {
            let plain = (0..stage.plain.len()).map(move |number| (at, false, number));
            let adapted = (0..stage.adapted.len()).map(move |number| (at, true, number));
            plain.chain(adapted)
        });
        of.collect()
    }

    fn choice(&self, (at, adapted, number): Place) -> &Choice {
        let stage = &self.stages[at];
        match adapted {
            true => &stage.adapted[number],
            false => &stage.plain[number],
        }
    }

    /// What makes attention's heads where a choice finds them made.
    fn heads(&self, (at, _, number): Place) -> Option<&Choice> {
        let attends = matches!(self.plan.kernels[at].anchor, Anchor::Attention { .. });
        let mut before = self.stages[at].plain.iter().take(number);
        let makes_heads = |c: &&Choice| !c.templates.iter().any(attention);
        before.find(makes_heads).filter(|_| attends)
    }

    /// What names the kernels of a choice's trials: the same for layers that share them.
    fn key(&self, place: Place) -> String {
        let choices = self.heads(place).into_iter().chain([self.choice(place)]);
        let adds_splits = self.tries_splits(place);
        let launched = distinct(choices.flat_map(|c| c.launched(adds_splits)));
        let keys = launched.iter().map(|t| t.spec.key(&self.plan.target));
        keys.collect::<Vec<_>>().join("+")
    }

    /// Whether a choice's trials have splits that a launch adds up: with few pages they have none.
    fn tries_splits(&self, place: Place) -> bool {
        let (plan, room, choice) = (&self.plan, self.room, self.choice(place));
        if !choice.templates.iter().any(Template::adds_splits) {
            return false;
        }
        let of = (&plan.kernels[place.0], &self.stages[place.0]);
        let trials = TrialRows::of_choice(plan, of, choice, &self.options);
        trials.iter().any(|rows| {
            let encoded = rows.with_step(|step| encode(step, plan, room, |_| None));
            encoded.shape.adds_splits
        })
    }

    /// How a choice does; none where there is no room to try it.
    fn verdict(&mut self, file: &dyn ModelFile, place: Place) -> Result<Option<Verdict>> {
        let (at, adapted, _) = place;
        let (choice, heads) = (self.choice(place).clone(), self.heads(place).cloned());
        let of = (&self.plan.kernels[at], &self.stages[at]);
        let mut found = None;
        for rows in TrialRows::of_choice(&self.plan, of, &choice, &self.options) {
            let trial = Trial {
                at,
                choice: choice.clone(),
                heads: heads.clone(),
                rows: match adapted {
                    true => rows.adapted(self.options.slots),
                    false => rows,
                },
                file,
            };
            match self.of_trial(&trial)? {
                Some(Some(wrong)) => return Ok(Some(Some(wrong))),
                right => found = found.or(right),
            }
        }
        Ok(found)
    }

    /// How a choice does in one of its trials; none where there is no room for it, or no such step.
    fn of_trial(&mut self, trial: &Trial<'_>) -> Result<Option<Verdict>> {
        match self.adapted_trial(trial) {
            Ok(verdict) => Ok(verdict),
            Err(error) if is_refusal(&error) => {
                tracing::warn!("{error}");
                Ok(Some(Some(Difference::REFUSED)))
            }
            Err(Error::Device(
                error @ (DeviceError::OutOfMemory { .. } | DeviceError::TooLarge { .. }),
            )) => {
                tracing::debug!("{error}: {} is not tested", trial.choice.variant);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A trial with the adapters that its rows name, which are gone again behind it.
    fn adapted_trial(&mut self, trial: &Trial<'_>) -> Result<Option<Verdict>> {
        let kernel = &self.plan.kernels[trial.at];
        let adapters = adapters::random(&self.plan, kernel, trial.rows.adapters())?;
        let pools = self.pools.iter().flatten();
        let before: Vec<u64> = pools.map(|pool| pool.buffer().bytes()).collect();
        let verdict = self.tried(trial, &adapters);
        for slot in 1..=adapters.len() as u32 {
            self.detach(SlotId(slot))?;
        }
        if !adapters.is_empty() {
            self.give_back(&before);
            self.recordings.clear();
        }
        verdict
    }

    fn tried(&mut self, trial: &Trial<'_>, adapters: &[Arc<SlotData>]) -> Result<Option<Verdict>> {
        let (plan, room) = (&self.plan, self.room);
        let encoded = (trial.rows).with_step(|step| encode(step, plan, room, |_| None));
        let Some(launched) = trial.launches(encoded.shape) else {
            return Ok(None);
        };
        for (slot, adapter) in (1..).zip(adapters) {
            self.attach(SlotId(slot), adapter.clone())?;
        }
        let kernel = self.plan.kernels[trial.at].clone();
        let layer = self.stages[trial.at].layer;
        let mut inputs = Inputs::new(&self.plan, &kernel, &trial.rows);
        self.write_inputs(&mut inputs, &kernel, layer, &trial.rows)?;
        self.launch_all(trial.at, &launched, &encoded)?;
        let reference = Reference {
            plan: &self.plan,
            kernel: &kernel,
            file: trial.file,
            rows: &trial.rows,
            inputs: &inputs,
            adapters,
            pages: self.pages,
        };
        let expected: Vec<Expected> = reference.expected(&launched)?;
        let difference = self.difference(&expected, layer, &trial.rows)?;
        if let Some(layer) = layer {
            self.clear_pages(layer, &trial.rows)?;
        }
        let allowed = comparison::allowed(&launched, layer.map(|_| self.options.kv));
        Ok(Some(difference.beyond(allowed)))
    }

    /// Launches of a stage, in order, in an encoded step.
    fn launch_all(&mut self, at: usize, launched: &[Template], encoded: &Encoded) -> Result<()> {
        self.upload(&encoded.words)?;
        let count = match self.stages[at].selected {
            true => encoded.shape.selected,
            false => encoded.shape.rows,
        };
        for template in launched {
            if let Some(chunk) = template.weights {
                self.weights.arrive(chunk, &*self.device)?;
            }
            let launch = self.launch(template, at, count, encoded.shape)?;
            self.device.run(&[launch])?;
        }
        // What the oracle takes behind this is not the weights' time.
        self.weights.wait(&*self.device)
    }
}

/// Whether a launch attends, as opposed to making heads for one that does.
fn attention(template: &Template) -> bool {
    matches!(
        template.spec.kind,
        Kind::Attention(_) | Kind::MatrixAttention(_) | Kind::RowAttention(_)
    )
}

/// The first launch of each kernel, in order; of layers in several buffers that of each buffer, of experts' parts, which lie in one chunk
/// of the weights, that of each part.
fn distinct<'a>(templates: impl Iterator<Item = &'a Template>) -> Vec<Template> {
    let mut all: Vec<Template> = Vec::new();
    for template in templates {
        let part = |t: &Template| t.weights == template.weights && t.scalars != template.scalars;
        let same = |t: &Template| t.spec == template.spec && t.piece == template.piece && !part(t);
        if !all.iter().any(same) {
            all.push(template.clone());
        }
    }
    all
}
