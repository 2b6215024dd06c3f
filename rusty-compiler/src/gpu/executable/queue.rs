//! Steps that are enqueued before those in front of them have run: the device finds the next one when it is done, and tokens that
//! it chose where it left them. The host reads what it needs of them meanwhile.

use super::GpuExecutable;
use super::results::Results;
use crate::gpu::operands::encode;
use crate::slots::EmbeddingDelta;
use crate::step::{CHOSEN, StepLimits, StepQueue};
use crate::{Error, Result, SlotId, Step, StepOutput};
use rusty_backend::Pending;
use std::collections::VecDeque;

/// Steps under way.
#[derive(Default)]
pub(super) struct UnderWay {
    steps: VecDeque<(Results, Option<Pending>)>,
    /// Tokens that the last step chose.
    chosen: u32,
}

impl UnderWay {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl GpuExecutable {
    fn embedding(&self, slot: SlotId) -> Option<&EmbeddingDelta> {
        self.embeddings.get(&slot).map(|e| &**e)
    }

    fn check(&self, step: &Step<'_>) -> Result<()> {
        step.check(&StepLimits {
            rows: self.plan.row_budget(),
            selected: self.plan.output_budget(),
            vocab: self.plan.vocab,
            chosen: self.under_way.chosen,
            pages: self.options.pages,
            slots: self.options.slots,
            prompt_rows: &|slot| self.embedding(slot).map_or(0, EmbeddingDelta::prompt_rows),
        })?;
        // Changes of embeddings are looked up on the host.
        let taken = step.tokens.iter().zip(step.slots);
        let changes = |slot| {
            self.embedding(slot)
                .is_some_and(EmbeddingDelta::changes_tokens)
        };
        let mut taken = taken.filter(|(token, slot)| **token >= CHOSEN && changes(**slot));
        match taken.next() {
            None => Ok(()),
            Some((_, slot)) => Err(Error::Step(format!(
                "a row takes a token that is not known yet, and the adapter in slot {} changes embeddings",
                slot.0
            ))),
        }
    }
}

impl StepQueue for GpuExecutable {
    fn enqueue(&mut self, step: &Step<'_>) -> Result<()> {
        self.check(step)?;
        let encoded = encode(step, &self.plan, self.room, |slot| self.embedding(slot));
        self.upload(&encoded.words)?;
        let results = Results::of(step, &self.plan);
        // A step that fails in the middle may have chosen.
        self.under_way.chosen = 0;
        let pending = self.enqueue_shape(encoded.shape, &results)?;
        self.under_way.chosen = results.chosen();
        self.under_way.steps.push_back((results, pending));
        Ok(())
    }

    fn finish(&mut self) -> Result<StepOutput> {
        let oldest = self.under_way.steps.pop_front();
        let nothing = || Error::Step("nothing is enqueued".into());
        let (mut results, pending) = oldest.ok_or_else(nothing)?;
        if let Some(pending) = pending {
            let received = self.device.receive(pending, &mut results.places());
            received.inspect_err(|_| self.under_way = UnderWay::default())?;
        }
        Ok(results.output())
    }
}
