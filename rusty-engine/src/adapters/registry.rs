//! Registered adapters and the slots that hold them.

mod resolved;
mod room;
#[cfg(test)]
mod tests;

pub(crate) use resolved::Resolved;
pub(crate) use room::is_full;

use super::mixing::{Ingredient, Mixture, Part, ReadTables, Recipe, Tables};
use super::{AdapterBudget, AdapterId, AdapterSet, Arrival, Source};
use crate::{Error, Result};
use rusty_adapters::Mix;
use rusty_compiler::{Executable, SlotData, SlotId};
use rusty_graph::Graph;
use std::collections::BTreeMap;
use std::sync::Arc;

struct Entry {
    name: String,
    source: Source,
    data: Option<Arc<SlotData>>,
    bytes: u64,
    /// Of these, what the host needs while a device has the rest: changed embeddings and prefixes.
    host_only: u64,
    /// What a device's copy of the rest takes.
    copied: u64,
    rank: u32,
    virtual_tokens: u32,
    /// Whether it brings what has no weight but 1: a soft prompt, or a whole embedding.
    whole: bool,
    pinned: bool,
    weight: f32,
    prepared_s: f64,
    used: u64,
}

impl Entry {
    /// Bytes that it takes in a slot, which is a device's own copy or reads tables where they lie.
    fn slot_bytes(&self, copies: bool) -> u64 {
        match copies {
            true => self.copied,
            false => self.bytes,
        }
    }
}

struct Slot {
    key: Resolved,
    /// What the host needs of what is in it.
    data: Arc<SlotData>,
    bytes: u64,
    /// Whether it reads an adapter's own tables where they lie: dropping them would free nothing.
    in_place: bool,
    used: u64,
    /// Steps that it took part in since it was filled.
    steps: u32,
}

/// What comes of asking for a set's slot.
#[derive(Debug)]
pub(crate) enum Acquired {
    /// The slot, and what the host needs of what is in it.
    Slot(SlotId, Option<Arc<SlotData>>),
    /// Others hold all slots, or the device's memory; what would fill one.
    Waits(Mixture),
}

/// See the module head.
pub(crate) struct Registry {
    entries: BTreeMap<AdapterId, Entry>,
    /// Index 0 is slot 1.
    slots: Vec<Option<Slot>>,
    budget: AdapterBudget,
    /// The network that adapters are mixed for.
    graph: Arc<Graph>,
    /// The least that a device had no memory for since a slot was emptied.
    refused: Option<u64>,
    clock: u64,
}

impl Registry {
    pub fn new(slots: u32, budget: AdapterBudget, graph: Arc<Graph>) -> Self {
        Self {
            entries: BTreeMap::new(),
            slots: (0..slots).map(|_| None).collect(),
            budget,
            graph,
            refused: None,
            clock: 0,
        }
    }

    /// Registers an adapter that was just read.
    pub fn add(&mut self, arrival: Arrival) {
        let Arrival {
            id,
            data,
            source,
            prepared_s,
            ..
        } = arrival;
        self.clock += 1;
        let entry = Entry {
            name: data.name.clone(),
            source,
            bytes: data.bytes() as u64,
            host_only: data.without_sites().bytes() as u64,
            copied: copied_bytes(&data),
            rank: data.largest_rank(),
            virtual_tokens: data.virtual_tokens(),
            whole: data.virtual_tokens() > 0
                || data.embedding.as_ref().is_some_and(|e| e.table.is_some()),
            data: Some(data),
            pinned: false,
            weight: 1.0,
            prepared_s,
            used: self.clock,
        };
        self.entries.insert(id, entry);
    }

    /// Forgets an adapter and empties the slots that hold it.
    pub fn remove(&mut self, id: AdapterId, executable: &mut dyn Executable) -> Result<()> {
        self.entry(id)?;
        self.entries.remove(&id);
        self.empty_slots_of(id, executable, &|_| false)
    }

    /// Weights an adapter; gives the weight it had.
    pub fn set_weight(&mut self, id: AdapterId, weight: f32) -> Result<f32> {
        if !weight.is_finite() {
            return Err(Error::Request(format!("{weight} is no weight")));
        }
        let entry = self.entry(id)?;
        if entry.whole && weight != 0.0 && weight != 1.0 {
            return Err(Error::Request(format!(
                "adapter {} brings a soft prompt or a whole embedding, which has no weight but 1 and 0",
                entry.name
            )));
        }
        Ok(std::mem::replace(&mut entry.weight, weight))
    }

    /// Empties slots that hold an adapter, but for busy ones.
    pub fn empty_slots_of(
        &mut self,
        id: AdapterId,
        executable: &mut dyn Executable,
        busy: &dyn Fn(SlotId) -> bool,
    ) -> Result<()> {
        let mut done = Ok(());
        for at in 0..self.slots.len() {
            let holds = self.slots[at].as_ref().is_some_and(|s| s.key.names(id));
            if holds && !busy(slot_id(at)) {
                done = done.and(self.empty(at, executable));
            }
        }
        done
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
        self.entries.get_mut(&id).ok_or_else(|| not_attached(id))
    }

    /// A set with the adapters' own weights; those of weight 0 take no part.
    pub fn resolve(&self, set: &AdapterSet) -> Result<Resolved> {
        self.resolve_by(set, |_, entry| entry.weight)
    }

    /// The same if an adapter had another weight.
    pub fn resolve_with(&self, set: &AdapterSet, id: AdapterId, weight: f32) -> Result<Resolved> {
        self.resolve_by(set, |own, entry| match own == id {
            true => weight,
            false => entry.weight,
        })
    }

    fn resolve_by(
        &self,
        set: &AdapterSet,
        own: impl Fn(AdapterId, &Entry) -> f32,
    ) -> Result<Resolved> {
        let mut entries = Vec::with_capacity(set.entries.len());
        for (id, weight) in &set.entries {
            let entry = self.entries.get(id).ok_or_else(|| not_attached(*id))?;
            let weight = weight * own(*id, entry);
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

    /// The slot of a set, filled if it was not. What fills it is the `mixture`, where it is this set's, else it is made here
    /// and now; slots that are `busy` make no room.
    ///
    /// # Errors
    /// All slots hold pinned adapters, or are none; an adapter is beyond the budget or the device's memory; its file is gone,
    /// or adapters cannot be mixed.
    pub fn acquire(
        &mut self,
        key: &Resolved,
        mixture: Option<Mixture>,
        executable: &mut dyn Executable,
        busy: &dyn Fn(SlotId) -> bool,
    ) -> Result<Acquired> {
        if key.is_base() {
            return Ok(Acquired::Slot(SlotId::BASE, None));
        }
        self.clock += 1;
        for (id, _) in &key.entries {
            let clock = self.clock;
            self.entry(*id)?.used = clock;
        }
        if let Some(at) = self.slot_of(key)
            && let Some(slot) = &mut self.slots[at]
        {
            slot.used = self.clock;
            return Ok(Acquired::Slot(slot_id(at), Some(slot.data.clone())));
        }
        let mixture = match mixture.filter(|m| m.key == *key) {
            Some(mixture) => mixture,
            None => {
                let recipe = self.recipe(key, executable.copies_tables())?;
                recipe.make(&mut ReadTables::new())?
            }
        };
        let filled = self.fill(mixture, executable, busy);
        self.shrink_host();
        filled
    }

    /// Puts a mixture into a slot.
    fn fill(
        &mut self,
        mixture: Mixture,
        executable: &mut dyn Executable,
        busy: &dyn Fn(SlotId) -> bool,
    ) -> Result<Acquired> {
        for ingredient in &mixture.made_of {
            self.restore(ingredient);
        }
        let data = &mixture.data;
        let (needed, bytes) = match executable.copies_tables() {
            true => (Arc::new(data.without_sites()), copied_bytes(data)),
            false => (data.clone(), data.bytes() as u64),
        };
        let Some(at) = self.place(data, bytes, executable, busy)? else {
            return Ok(Acquired::Waits(mixture));
        };
        let key = mixture.key;
        self.slots[at] = Some(Slot {
            in_place: !executable.copies_tables() && key.entries.len() == 1,
            key,
            data: needed.clone(),
            bytes,
            used: self.clock,
            steps: 0,
        });
        Ok(Acquired::Slot(slot_id(at), Some(needed)))
    }

    /// Puts an adapter into a free slot where there is one, so that its first user need not wait. Where the device has no
    /// memory for it, it waits in the host's until somebody asks with it, and others make room.
    pub fn settle(&mut self, mixture: Mixture, executable: &mut dyn Executable) -> Result<()> {
        let key = &mixture.key.clone();
        let room = self.slots.iter().any(Option::is_none);
        let own = key
            .entries
            .iter()
            .filter_map(|(id, _)| self.entries.get(id));
        let copies = executable.copies_tables();
        let bytes: u64 = own.map(|e| e.slot_bytes(copies)).sum();
        if room && self.device_bytes() + bytes <= self.budget.device {
            match self.acquire(key, Some(mixture), executable, &|_| true) {
                Err(Error::Compiler(error)) if is_full(&error) => {
                    tracing::warn!(
                        "an adapter stays in the host's memory until it is used: {error}"
                    );
                }
                Ok(Acquired::Waits(_)) => {
                    tracing::warn!(
                        "an adapter stays in the host's memory until it is used: others hold the device's"
                    );
                }
                settled => drop(settled?),
            }
        }
        self.shrink_host();
        Ok(())
    }

    /// Whether a set is in a slot, or needs none.
    pub fn is_at_hand(&self, key: &Resolved) -> bool {
        self.slot_with(key).is_some()
    }

    /// The slot that a set is in, where it is in one or needs none.
    pub fn slot_with(&self, key: &Resolved) -> Option<SlotId> {
        match key.is_base() {
            true => Some(SlotId::BASE),
            false => self.slot_of(key).map(slot_id),
        }
    }

    /// What the host needs of a set that is in a slot.
    pub fn host_part(&self, key: &Resolved) -> Option<Arc<SlotData>> {
        let slot = self.slots[self.slot_of(key)?].as_ref()?;
        Some(slot.data.clone())
    }

    fn slot_of(&self, key: &Resolved) -> Option<usize> {
        let holds = |slot: &Option<Slot>| slot.as_ref().is_some_and(|s| s.key == *key);
        self.slots.iter().position(holds)
    }

    /// What it takes to make what a set amounts to, with `plain` factors where slots hold no others.
    ///
    /// # Errors
    /// An adapter is not attached.
    pub fn recipe(&self, key: &Resolved, plain: bool) -> Result<Recipe> {
        let part = |(id, bits): &(AdapterId, u32)| {
            let entry = self.entries.get(id).ok_or_else(|| not_attached(*id))?;
            let tables = match &entry.data {
                Some(data) => Tables::Held(data.clone()),
                None => Tables::Absent(entry.source.clone()),
            };
            Ok(Part {
                id: *id,
                weight: f32::from_bits(*bits),
                tables,
            })
        };
        let parts = key.entries.iter().map(part);
        Ok(Recipe {
            key: key.clone(),
            parts: parts.collect::<Result<_>>()?,
            graph: self.graph.clone(),
            plain,
        })
    }

    /// Takes tables of a mixture that are not in memory any more.
    fn restore(&mut self, Ingredient { id, data, read_s }: &Ingredient) {
        if let Some(entry) = self.entries.get_mut(id)
            && entry.data.is_none()
        {
            entry.data = Some(data.clone());
            entry.prepared_s = read_s.unwrap_or(entry.prepared_s);
        }
    }
}

/// Bytes of a device's copy of an adapter's tables at sites.
fn copied_bytes(data: &SlotData) -> u64 {
    (data.plain_bytes() - data.without_sites().bytes()) as u64
}

fn slot_id(at: usize) -> SlotId {
    SlotId(at as u32 + 1)
}

fn not_attached(id: AdapterId) -> Error {
    Error::Request(format!("adapter {id} is not attached"))
}
