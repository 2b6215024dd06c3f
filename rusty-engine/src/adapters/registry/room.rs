//! Who makes room: slots and the host's memory hold what was used last, within the budgets.
//!
//! Bytes count where they are. What is in a device's slot and in the host's memory too counts in both; on a CPU, whose slots
//! read tables where they lie, that is what both budgets bound. Tables of slots that are copies are the first to be dropped:
//! nobody waits for them before the slot is lost.

use super::{Entry, Registry, Slot, slot_id};
use crate::adapters::{AdapterId, AdapterMemory, AdapterStatus, Source, Tier};
use crate::{Error, Result};
use rusty_backend::Error as DeviceError;
use rusty_compiler::{Error as CompileError, Executable, SlotData, SlotId};
use std::cmp::Reverse;
use std::sync::Arc;

/// Steps that a set in a slot takes part in before others that wait for one go first: many, since filling a slot may copy all
/// tables.
const TURN: u32 = 32;

/// Whether a device refused tables because others hold its memory.
pub(crate) fn is_full(error: &CompileError) -> bool {
    use DeviceError::{OutOfMemory, TooLarge};
    matches!(
        error,
        CompileError::Device(OutOfMemory { .. } | TooLarge { .. })
    )
}

impl Registry {
    pub(super) fn device_bytes(&self) -> u64 {
        self.slots.iter().flatten().map(|s| s.bytes).sum()
    }

    fn is_in_slot(&self, id: AdapterId) -> bool {
        self.slots.iter().flatten().any(|s| s.key.names(id))
    }

    /// Bytes of an adapter in the host's memory.
    fn host_bytes_of(&self, id: AdapterId, entry: &Entry) -> u64 {
        match entry.data {
            Some(_) => entry.bytes,
            None if self.is_in_slot(id) => entry.host_only,
            None => 0,
        }
    }

    fn host_bytes(&self) -> u64 {
        let entries = self.entries.iter();
        entries.map(|(id, e)| self.host_bytes_of(*id, e)).sum()
    }

    /// A slot for `bytes`, making room within the budget; none where busy ones hold all.
    pub(super) fn free_slot(
        &mut self,
        bytes: u64,
        executable: &mut dyn Executable,
        busy: &dyn Fn(SlotId) -> bool,
    ) -> Result<Option<usize>> {
        loop {
            let free = self.slots.iter().position(Option::is_none);
            let over = self.device_bytes() + bytes > self.budget.device;
            match (free, over) {
                (Some(at), false) => return Ok(Some(at)),
                _ => match self.idle_slot(busy) {
                    Some(at) => self.empty(at, executable)?,
                    None if self.yields() => return Ok(None),
                    // Pinned adapters have the budget to themselves, and nobody else would come.
                    None if free.is_some() => return Ok(free),
                    None => {
                        return Err(Error::Request(format!(
                            "all {} adapter slots hold pinned adapters; load with more",
                            self.slots.len()
                        )));
                    }
                },
            }
        }
    }

    /// Whether any slot makes room once it is idle.
    fn yields(&self) -> bool {
        self.idle_slot(&|_| false).is_some()
    }

    /// Puts tables into a slot, whose place it gives; none where busy slots hold what it takes. Where the device has no memory
    /// for them, others make room as they do where there is no slot.
    pub(super) fn place(
        &mut self,
        data: &Arc<SlotData>,
        bytes: u64,
        executable: &mut dyn Executable,
        busy: &dyn Fn(SlotId) -> bool,
    ) -> Result<Option<usize>> {
        if bytes > self.budget.device {
            return Err(Error::Request(format!(
                "adapter {} of {bytes} bytes is beyond the budget of {}",
                data.name, self.budget.device
            )));
        }
        // As long as nobody made room, the device has none for as much as it refused.
        let refused = self.refused.is_some_and(|refused| bytes >= refused);
        if refused && self.idle_slot(busy).is_none() && self.yields() {
            return Ok(None);
        }
        loop {
            let Some(at) = self.free_slot(bytes, executable, busy)? else {
                return Ok(None);
            };
            let Err(error) = executable.attach(slot_id(at), data.clone()) else {
                return Ok(Some(at));
            };
            match self.idle_slot(busy) {
                _ if !is_full(&error) => return Err(error.into()),
                Some(idle) => self.empty(idle, executable)?,
                None if self.yields() => {
                    self.refused = Some(bytes);
                    return Ok(None);
                }
                None => return Err(error.into()),
            }
        }
    }

    /// The slot that was used longest ago, of those that may make room: of the slots that hold a pinned adapter alone, by
    /// several weights, all but the one that was used last. Of slots that were used in the same step, the one that took part in
    /// most.
    fn idle_slot(&self, busy: &dyn Fn(SlotId) -> bool) -> Option<usize> {
        let idle = self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let slot = slot.as_ref()?;
            let order = (slot.used, Reverse(slot.steps), at);
            (!busy(slot_id(at)) && !self.is_pinned(slot)).then_some(order)
        });
        idle.min().map(|(_, _, at)| at)
    }

    fn is_pinned(&self, slot: &Slot) -> bool {
        let Some(id) = slot.key.only() else {
            return false;
        };
        // Several may have been used in one step.
        let of_it = self.slots.iter().flatten();
        let of_it = of_it.filter(|s| s.key.only() == Some(id));
        let last = of_it.max_by_key(|s| s.used);
        let is_last = last.is_some_and(|last| std::ptr::eq(last, slot));
        self.entries.get(&id).is_some_and(|e| e.pinned) && is_last
    }

    pub(super) fn empty(&mut self, at: usize, executable: &mut dyn Executable) -> Result<()> {
        executable.detach(slot_id(at))?;
        self.slots[at] = None;
        self.refused = None;
        Ok(())
    }

    /// Notes that rows of a step use slots.
    pub fn serve(&mut self, slots: impl Iterator<Item = SlotId>) {
        self.clock += 1;
        for slot in slots {
            let at = (slot.0 as usize).checked_sub(1);
            let slot = at.and_then(|at| self.slots.get_mut(at)?.as_mut());
            if let Some(slot) = slot.filter(|slot| slot.used < self.clock) {
                slot.used = self.clock;
                slot.steps = slot.steps.saturating_add(1);
            }
        }
    }

    /// Whether a slot took part in so many steps that another set that waits for one goes first.
    pub fn had_its_turn(&self, slot: SlotId) -> bool {
        let at = (slot.0 as usize).checked_sub(1);
        let slot = at.and_then(|at| self.slots.get(at)?.as_ref());
        slot.is_some_and(|slot| slot.steps >= TURN)
    }

    /// Drops tables that can be read again until the host's budget is kept.
    pub fn shrink_host(&mut self) {
        while self.host_bytes() > self.budget.host {
            let Some(id) = self.droppable() else {
                return;
            };
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.data = None;
            }
        }
    }

    /// Whose tables are to go next, where any may: those in slots first, then those that were used longest ago. What the host
    /// needs of an adapter in a slot stays with the slot, so that dropping it would free nothing.
    fn droppable(&self) -> Option<AdapterId> {
        let in_place = |id: AdapterId| {
            let mut slots = self.slots.iter().flatten();
            slots.any(|s| s.in_place && s.key.names(id))
        };
        let entries = self.entries.iter().filter(|(id, e)| {
            let again = matches!(e.source, Source::File { .. });
            let frees = e.bytes > e.host_only || !self.is_in_slot(**id);
            e.data.is_some() && again && !e.pinned && frees && !in_place(**id)
        });
        let next = entries.min_by_key(|(id, e)| (!self.is_in_slot(**id), e.used));
        next.map(|(id, _)| *id)
    }

    /// Bytes that all adapters hold.
    pub fn memory(&self) -> AdapterMemory {
        AdapterMemory {
            device: self.device_bytes(),
            host: self.host_bytes(),
        }
    }

    /// What is known of all adapters; `sessions` counts those that name one.
    pub fn status(&self, sessions: impl Fn(AdapterId) -> usize) -> Vec<AdapterStatus> {
        let tier = |id: AdapterId, entry: &Entry| match (self.is_in_slot(id), &entry.data) {
            (true, _) => Tier::Device,
            (false, Some(_)) => Tier::Host,
            (false, None) => Tier::Disk,
        };
        let entries = self.entries.iter();
        entries
            .map(|(id, e)| AdapterStatus {
                id: *id,
                name: e.name.clone(),
                bytes: e.bytes,
                host_bytes: self.host_bytes_of(*id, e),
                tier: tier(*id, e),
                pinned: e.pinned,
                weight: e.weight,
                sessions: sessions(*id),
                rank: e.rank,
                virtual_tokens: e.virtual_tokens,
                prepared_s: e.prepared_s,
            })
            .collect()
    }
}
