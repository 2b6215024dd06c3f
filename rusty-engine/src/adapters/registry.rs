//! Registered adapters and the slots that hold them.

use super::{AdapterBudget, AdapterId, AdapterSet, AdapterStatus, Source, Tier};
use crate::{Error, Result};
use rusty_adapters::{Mix, mix};
use rusty_compiler::{Executable, SlotData, SlotId};
use rusty_graph::Graph;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A set with every weight resolved: what keys and values belong to.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub(crate) struct Resolved {
    /// Adapters and the bits of their weights.
    entries: Vec<(AdapterId, u32)>,
    linear: bool,
}

impl Resolved {
    pub fn names(&self, id: AdapterId) -> bool {
        self.entries.iter().any(|(own, _)| *own == id)
    }

    pub fn is_base(&self) -> bool {
        self.entries.is_empty()
    }
}

struct Entry {
    name: String,
    source: Source,
    data: Option<Arc<SlotData>>,
    bytes: u64,
    rank: u32,
    virtual_tokens: u32,
    pinned: bool,
    weight: f32,
    prepared_s: f64,
    used: u64,
}

struct Slot {
    key: Resolved,
    data: Arc<SlotData>,
    used: u64,
}

/// See the module head.
pub(crate) struct Registry {
    entries: BTreeMap<AdapterId, Entry>,
    /// Index 0 is slot 1.
    slots: Vec<Option<Slot>>,
    budget: AdapterBudget,
    /// The network that adapters are mixed for.
    graph: Arc<Graph>,
    next: u32,
    clock: u64,
}

impl Registry {
    pub fn new(slots: u32, budget: AdapterBudget, graph: Arc<Graph>) -> Self {
        Self {
            entries: BTreeMap::new(),
            slots: (0..slots).map(|_| None).collect(),
            budget,
            graph,
            next: 0,
            clock: 0,
        }
    }

    /// Registers an adapter that was just read.
    pub fn add(&mut self, data: Arc<SlotData>, source: Source, prepared_s: f64) -> AdapterId {
        self.next += 1;
        self.clock += 1;
        let entry = Entry {
            name: data.name.clone(),
            source,
            bytes: data.bytes() as u64,
            rank: data.largest_rank(),
            virtual_tokens: data.virtual_tokens(),
            data: Some(data),
            pinned: false,
            weight: 1.0,
            prepared_s,
            used: self.clock,
        };
        self.entries.insert(AdapterId(self.next), entry);
        AdapterId(self.next)
    }

    /// Forgets an adapter and empties the slots that hold it.
    pub fn remove(&mut self, id: AdapterId, executable: &mut dyn Executable) -> Result<()> {
        self.entry(id)?;
        self.empty_slots_of(id, executable, &|_| false)?;
        self.entries.remove(&id);
        Ok(())
    }

    /// Weights an adapter; gives the weight it had.
    pub fn set_weight(&mut self, id: AdapterId, weight: f32) -> Result<f32> {
        if !weight.is_finite() {
            return Err(Error::Request(format!("{weight} is no weight")));
        }
        Ok(std::mem::replace(&mut self.entry(id)?.weight, weight))
    }

    /// Empties slots that hold an adapter, but for busy ones.
    pub fn empty_slots_of(
        &mut self,
        id: AdapterId,
        executable: &mut dyn Executable,
        busy: &dyn Fn(SlotId) -> bool,
    ) -> Result<()> {
        for at in 0..self.slots.len() {
            let holds = self.slots[at].as_ref().is_some_and(|s| s.key.names(id));
            if holds && !busy(slot_id(at)) {
                self.empty(at, executable)?;
            }
        }
        Ok(())
    }

    /// Virtual tokens in front of sequences of a set.
    pub fn virtual_tokens(&self, key: &Resolved) -> usize {
        let entries = key.entries.iter();
        let entries = entries.filter_map(|(id, _)| self.entries.get(id));
        entries.map(|e| e.virtual_tokens as usize).sum()
    }

    pub fn pin(&mut self, id: AdapterId, pinned: bool) -> Result<()> {
        self.entry(id)?.pinned = pinned;
        Ok(())
    }

    fn entry(&mut self, id: AdapterId) -> Result<&mut Entry> {
        let missing = || Error::Request(format!("adapter {} is not attached", id.0));
        self.entries.get_mut(&id).ok_or_else(missing)
    }

    /// A set with the adapters' own weights; those of weight 0 take no part.
    pub fn resolve(&self, set: &AdapterSet) -> Result<Resolved> {
        let mut entries = Vec::with_capacity(set.entries.len());
        for (id, weight) in &set.entries {
            let missing = || Error::Request(format!("adapter {} is not attached", id.0));
            let weight = weight * self.entries.get(id).ok_or_else(missing)?.weight;
            if !weight.is_finite() {
                return Err(Error::Request(format!("{weight} is no weight")));
            }
            if weight != 0.0 {
                entries.push((*id, weight.to_bits()));
            }
        }
        Ok(Resolved {
            linear: set.mix == Mix::Linear && entries.len() > 1,
            entries,
        })
    }

    /// The slot of a set, filled if it was not; `busy` tells which slots running answers need.
    ///
    /// # Errors
    /// All slots are needed by running answers, an adapter's file is gone, or adapters cannot be mixed.
    pub fn acquire(
        &mut self,
        key: &Resolved,
        executable: &mut dyn Executable,
        busy: &dyn Fn(SlotId) -> bool,
    ) -> Result<(SlotId, Option<Arc<SlotData>>)> {
        if key.is_base() {
            return Ok((SlotId::BASE, None));
        }
        self.clock += 1;
        for (id, _) in &key.entries {
            let clock = self.clock;
            self.entry(*id)?.used = clock;
        }
        let held = self
            .slots
            .iter_mut()
            .enumerate()
            .find_map(|(at, slot)| Some((at, slot.as_mut().filter(|s| s.key == *key)?)));
        if let Some((at, slot)) = held {
            slot.used = self.clock;
            return Ok((slot_id(at), Some(slot.data.clone())));
        }
        let data = self.mixed(key)?;
        let at = self.free_slot(data.bytes() as u64, executable, busy)?;
        executable.attach(slot_id(at), data.clone())?;
        self.slots[at] = Some(Slot {
            key: key.clone(),
            data: data.clone(),
            used: self.clock,
        });
        self.shrink_host();
        Ok((slot_id(at), Some(data)))
    }

    /// Puts an adapter into a free slot where there is one, so that its first user need not wait.
    pub fn settle(&mut self, key: &Resolved, executable: &mut dyn Executable) -> Result<()> {
        let room = self.slots.iter().any(Option::is_none);
        let own = key
            .entries
            .iter()
            .filter_map(|(id, _)| self.entries.get(id));
        let bytes: u64 = own.map(|e| e.bytes).sum();
        if room && self.device_bytes() + bytes <= self.budget.device {
            self.acquire(key, executable, &|_| true)?;
        }
        self.shrink_host();
        Ok(())
    }

    fn mixed(&mut self, key: &Resolved) -> Result<Arc<SlotData>> {
        let mut parts = Vec::with_capacity(key.entries.len());
        for (id, bits) in &key.entries {
            parts.push((self.read(*id)?, f32::from_bits(*bits)));
        }
        if let [(only, 1.0)] = &parts[..] {
            return Ok(only.clone());
        }
        let parts: Vec<_> = parts.iter().map(|(data, w)| (&**data, *w)).collect();
        let how = if key.linear { Mix::Linear } else { Mix::Sum };
        Ok(Arc::new(mix(&parts, how, &self.graph)?))
    }

    /// An adapter's tables, from its file where they were dropped.
    fn read(&mut self, id: AdapterId) -> Result<Arc<SlotData>> {
        let entry = self.entry(id)?;
        if let Some(data) = &entry.data {
            return Ok(data.clone());
        }
        let start = Instant::now();
        let data = entry.source.read()?;
        self.restore(id, data.clone(), start.elapsed().as_secs_f64());
        Ok(data)
    }

    /// Adapters of a set whose tables are in their files only, and where to read them.
    pub fn absent(&self, set: &AdapterSet) -> Vec<(AdapterId, Source)> {
        let entries = set.entries.iter();
        let entries = entries.filter_map(|(id, _)| Some((*id, self.entries.get(id)?)));
        let absent = entries.filter(|(_, e)| e.data.is_none());
        absent.map(|(id, e)| (id, e.source.clone())).collect()
    }

    /// Takes tables that were read again.
    pub fn restore(&mut self, id: AdapterId, data: Arc<SlotData>, seconds: f64) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            tracing::debug!(adapter = entry.name, seconds, "read again");
            (entry.data, entry.prepared_s, entry.used) = (Some(data), seconds, self.clock);
        }
    }

    fn device_bytes(&self) -> u64 {
        self.slots
            .iter()
            .flatten()
            .map(|s| s.data.bytes() as u64)
            .sum()
    }

    /// A slot for `bytes`, making room within the budget.
    fn free_slot(
        &mut self,
        bytes: u64,
        executable: &mut dyn Executable,
        busy: &dyn Fn(SlotId) -> bool,
    ) -> Result<usize> {
        if bytes > self.budget.device {
            return Err(Error::Request(format!(
                "an adapter of {bytes} bytes is beyond the budget of {}",
                self.budget.device
            )));
        }
        loop {
            let free = self.slots.iter().position(Option::is_none);
            let over = self.device_bytes() + bytes > self.budget.device;
            match (free, over) {
                (Some(at), false) => return Ok(at),
                _ => match self.idle_slot(busy) {
                    Some(at) => self.empty(at, executable)?,
                    // A budget that running answers exceed must not stop another one.
                    None => {
                        return free.ok_or_else(|| {
                            Error::Request(format!(
                                "all {} adapter slots are in use by running answers; load with more",
                                self.slots.len()
                            ))
                        });
                    }
                },
            }
        }
    }

    /// The slot that was used longest ago, of those that may make room.
    fn idle_slot(&self, busy: &dyn Fn(SlotId) -> bool) -> Option<usize> {
        let pinned = |key: &Resolved| {
            key.entries.len() == 1
                && self
                    .entries
                    .get(&key.entries[0].0)
                    .is_some_and(|e| e.pinned)
        };
        let idle = self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let slot = slot.as_ref()?;
            (!busy(slot_id(at)) && !pinned(&slot.key)).then_some((slot.used, at))
        });
        idle.min().map(|(_, at)| at)
    }

    fn empty(&mut self, at: usize, executable: &mut dyn Executable) -> Result<()> {
        executable.detach(slot_id(at))?;
        self.slots[at] = None;
        Ok(())
    }

    /// Drops tables that can be read again until the host's budget is kept.
    fn shrink_host(&mut self) {
        let held = |e: &Entry| if e.data.is_some() { e.bytes } else { 0 };
        while self.entries.values().map(held).sum::<u64>() > self.budget.host {
            let slots = &self.slots;
            let in_slot = |id: AdapterId| slots.iter().flatten().any(|s| s.key.names(id));
            let droppable = |id: &AdapterId, e: &Entry| {
                e.data.is_some()
                    && !e.pinned
                    && !in_slot(*id)
                    && matches!(e.source, Source::File { .. })
            };
            let oldest = self
                .entries
                .iter_mut()
                .filter(|(id, e)| droppable(id, e))
                .min_by_key(|(_, e)| e.used);
            match oldest {
                Some((_, entry)) => entry.data = None,
                None => return,
            }
        }
    }

    /// What is known of all adapters; `sessions` counts those that name one.
    pub fn status(&self, sessions: impl Fn(AdapterId) -> usize) -> Vec<AdapterStatus> {
        let tier = |id: AdapterId, entry: &Entry| {
            let in_slot = self.slots.iter().flatten().any(|s| s.key.names(id));
            match (in_slot, &entry.data) {
                (true, _) => Tier::Device,
                (false, Some(_)) => Tier::Host,
                (false, None) => Tier::Disk,
            }
        };
        let entries = self.entries.iter();
        entries
            .map(|(id, e)| AdapterStatus {
                id: *id,
                name: e.name.clone(),
                bytes: e.bytes,
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

fn slot_id(at: usize) -> SlotId {
    SlotId(at as u32 + 1)
}
