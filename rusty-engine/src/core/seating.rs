//! Which answers have their adapters in a slot. Slots are few, and answers that run at once may want more sets than there are:
//! then sets take turns. One that waits goes before those that took part in many steps since they got their slot; what an
//! answer has computed stays while it waits. Filling a slot takes about as long as a step, so a turn is many of these.

use super::Core;
use crate::adapters::{Acquired, Mixture, Recipe, Resolved};
use crate::sequence::Sequence;
use crate::{Error, Result};
use rusty_compiler::{SlotData, SlotId};
use std::cmp::Reverse;
use std::sync::Arc;

impl Core {
    /// Slots that running answers use.
    pub(super) fn busy_slots(&self) -> Vec<SlotId> {
        let answering = self.sequences.values().filter(|s| s.is_answering());
        answering
            .filter_map(|s| self.adapters.slot_with(&s.key))
            .collect()
    }

    /// The slot of a set, where one is there without an answer losing its own; filled with the mixture where it was not.
    ///
    /// # Errors
    /// As [`Registry::acquire`](crate::adapters::Registry::acquire).
    pub(super) fn acquire_idle(
        &mut self,
        key: &Resolved,
        mixture: Option<Mixture>,
    ) -> Result<Acquired> {
        let busy = self.busy_slots();
        self.adapters
            .acquire(key, mixture, &mut *self.executable, &|s| busy.contains(&s))
    }

    /// The slot of a set for rows that run at once, and what the host needs of it. An answer that loses its own gets one again
    /// when it goes on.
    ///
    /// # Errors
    /// As [`Registry::acquire`](crate::adapters::Registry::acquire).
    pub fn acquire_now(
        &mut self,
        key: &Resolved,
        mixture: Option<Mixture>,
    ) -> Result<(SlotId, Option<Arc<SlotData>>)> {
        let mut acquired = self.acquire_idle(key, mixture)?;
        if let Acquired::Waits(mixture) = acquired {
            let all = &|_| false;
            acquired = self
                .adapters
                .acquire(key, Some(mixture), &mut *self.executable, all)?;
        }
        match acquired {
            Acquired::Slot(slot, data) => Ok((slot, data)),
            Acquired::Waits(_) => Err(Error::Request("no adapter slot makes room".into())),
        }
    }

    /// Gives those who have rows to run their slots. For each sequence, in order: the slot of its set; none where it has nothing
    /// to run, or waits. Who can get none for a reason of its own fails alone.
    pub(super) fn seat(&mut self) -> Vec<Option<SlotId>> {
        let runs = |s: &Sequence| s.waiting().rows > 0;
        let runnable = self.sequences.values().filter(|s| runs(s));
        let slots = runnable.filter_map(|s| self.adapters.slot_with(&s.key));
        let mut held: Vec<SlotId> = slots
            .filter(|slot| !self.adapters.had_its_turn(*slot))
            .collect();
        for id in self.waiting_longest_first() {
            let Some(sequence) = self.sequences.get_mut(&id) else {
                continue;
            };
            let Some(answer) = &mut sequence.answer else {
                continue;
            };
            let taken = self.adapters.acquire(
                &sequence.key,
                answer.mixture.take(),
                &mut *self.executable,
                &|s| held.contains(&s),
            );
            match taken {
                Ok(Acquired::Slot(slot, _)) => held.push(slot),
                Ok(Acquired::Waits(mixture)) => answer.mixture = Some(mixture),
                Err(error) => sequence.fail(error),
            }
        }
        let mut seats = Vec::with_capacity(self.sequences.len());
        for sequence in self.sequences.values_mut() {
            let runs = runs(sequence);
            let slot = self.adapters.slot_with(&sequence.key).filter(|_| runs);
            if let Some(answer) = sequence.answer.as_mut().filter(|_| runs) {
                answer.waited = match slot {
                    Some(_) => 0,
                    None => answer.waited + 1,
                };
            }
            seats.push(slot);
        }
        let mut serving: Vec<SlotId> = seats.iter().flatten().copied().collect();
        serving.sort_unstable();
        serving.dedup();
        self.adapters.serve(&serving);
        seats
    }

    /// Sequences that have rows to run, no slot, and what would fill one.
    fn waiting_longest_first(&self) -> Vec<u64> {
        let waiting = self.sequences.iter().filter_map(|(id, s)| {
            let answer = s.answer.as_ref().filter(|a| a.mixture.is_some())?;
            let unseated = s.waiting().rows > 0 && !self.adapters.is_at_hand(&s.key);
            unseated.then_some((Reverse(answer.waited), *id))
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, id)| id).collect()
    }

    /// What it takes to make what an answer's set amounts to, where that is neither in a slot nor made: its slot went to another
    /// set.
    ///
    /// # Errors
    /// An adapter is not attached.
    pub fn unmade_of(&self, id: u64) -> Result<Option<Recipe>> {
        let sequence = self.sequences.get(&id);
        let lacks = sequence.filter(|s| {
            let unmade = s.answer.as_ref().is_some_and(|a| a.mixture.is_none());
            unmade && s.waiting().rows > 0 && !self.adapters.is_at_hand(&s.key)
        });
        lacks.map(|s| self.adapters.recipe(&s.key)).transpose()
    }

    /// Takes what an answer's set amounts to, if it still does.
    pub fn hand(&mut self, id: u64, mixture: Mixture) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && sequence.key == mixture.key
            && let Some(answer) = &mut sequence.answer
        {
            answer.mixture = Some(mixture);
        }
    }
}
