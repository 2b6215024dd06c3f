//! Which answers have their adapters in a slot. Slots are few, and answers that run at once may want more sets than there are:
//! then sets take turns. One that waits goes before those that took part in many steps since they got their slot; what an
//! answer has computed stays while it waits. To fill a slot is to copy all of an adapter's tables on a GPU, so a turn is many
//! steps.

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

    /// The slot of a set, where one is there without an answer losing its own, or one that waits longer being passed; filled
    /// with the mixture where it was not.
    ///
    /// # Errors
    /// As [`Registry::acquire`](crate::adapters::Registry::acquire).
    pub(super) fn acquire_idle(
        &mut self,
        key: &Resolved,
        mixture: Option<Mixture>,
    ) -> Result<Acquired> {
        let others_wait = !self.waiting_longest_first().is_empty();
        match mixture {
            // What is free has been freed for those who wait.
            Some(mixture) if others_wait && !self.adapters.is_at_hand(key) => {
                Ok(Acquired::Waits(mixture))
            }
            mixture => {
                let busy = self.busy_slots();
                let is_busy = |slot: SlotId| busy.contains(&slot);
                self.adapters
                    .acquire(key, mixture, &mut *self.executable, &is_busy)
            }
        }
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
                Ok(Acquired::Waits(mixture)) => {
                    answer.mixture = Some(mixture);
                    // What makes room from now on is for this one, which may need more of it than those behind.
                    break;
                }
                Err(error) => sequence.fail(error),
            }
        }
        let mut seats = Vec::with_capacity(self.sequences.len());
        for sequence in self.sequences.values_mut() {
            let runs = runs(sequence);
            let slot = self.adapters.slot_with(&sequence.key).filter(|_| runs);
            if let Some(answer) = sequence.answer.as_mut().filter(|_| runs) {
                match slot {
                    Some(_) => (answer.waited, answer.mixture) = (0, None),
                    None => answer.waited += 1,
                }
            }
            seats.push(slot);
        }
        seats
    }

    /// Sequences that have rows to run, no slot, and what would fill one.
    pub(super) fn waiting_longest_first(&self) -> Vec<u64> {
        let waiting = self.sequences.iter().filter_map(|(id, s)| {
            let answer = s.answer.as_ref().filter(|a| a.mixture.is_some())?;
            let unseated = s.waiting().rows > 0 && !self.adapters.is_at_hand(&s.key);
            unseated.then_some((Reverse(answer.waited), *id))
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, id)| id).collect()
    }

    /// What it takes to make what an answer's set amounts to, where that is neither in a slot nor made for anybody: its slot went
    /// to another set.
    ///
    /// # Errors
    /// An adapter is not attached.
    pub fn unmade_of(&mut self, id: u64) -> Result<Option<Recipe>> {
        let Some(sequence) = self.sequences.get(&id) else {
            return Ok(None);
        };
        let unmade = sequence
            .answer
            .as_ref()
            .is_some_and(|a| a.mixture.is_none());
        let key = &sequence.key;
        if !unmade || sequence.waiting().rows == 0 || self.adapters.is_at_hand(key) {
            return Ok(None);
        }
        let others = self.sequences.values();
        let mut made = others.filter_map(|s| s.answer.as_ref()?.mixture.as_ref());
        match made.find(|mixture| mixture.key == *key).cloned() {
            Some(mixture) => {
                self.hand(id, &mixture.key.clone(), Ok(mixture));
                Ok(None)
            }
            None => self.recipe(key).map(Some),
        }
    }

    /// Takes what an answer's set amounts to, or why it cannot be made, if it is this set still.
    pub fn hand(&mut self, id: u64, key: &Resolved, made: Result<Mixture>) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|s| s.key == *key) else {
            return;
        };
        match (made, &mut sequence.answer) {
            (Ok(mixture), Some(answer)) => answer.mixture = Some(mixture),
            (Ok(_), None) => {}
            (Err(error), _) => sequence.fail(error),
        }
    }
}
