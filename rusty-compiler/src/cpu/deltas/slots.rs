//! Adapter slots on the CPU: which slot does what at a site, and how much room that takes.
//!
//! Tables are read where they lie, so attaching an adapter costs no more than noting where its sites are. For a
//! row whose slot acts at a site, `u = scale * (A x)` is computed once before the tiles, split over threads by
//! groups of rows, and `B u` is added to the tile while it is hot (see [`super::low_rank`]). Rows of BASE take part in
//! neither.

use super::site_tables::SiteTables;
use crate::Result;
use crate::slots::{SlotData, SlotId, SlotShape};
use rusty_graph::SiteId;
use std::sync::Arc;

struct Slot {
    data: Arc<SlotData>,
    /// The tables in `data`, by site.
    sites: Vec<Option<SiteTables>>,
}

/// All slots; index 0 is BASE.
pub(in crate::cpu) struct SlotTable {
    slots: Vec<Option<Slot>>,
    most_lows: usize,
    gains_inputs: bool,
}

impl SlotTable {
    /// Empty slots `1 ..= slots`.
    pub(in crate::cpu) fn new(slots: u32) -> Self {
        Self {
            slots: (0..=slots).map(|_| None).collect(),
            most_lows: 0,
            gains_inputs: false,
        }
    }

    /// Fills a slot.
    pub(in crate::cpu) fn attach(
        &mut self,
        slot: SlotId,
        data: Arc<SlotData>,
        shape: SlotShape<'_>,
    ) -> Result<()> {
        slot.check(self.count(), &data.name)?;
        data.fit(shape)?;
        let mut sites = vec![None; shape.sites.len()];
        for (id, delta) in &data.sites {
            let k = shape.sites[id.index()].k as usize;
            sites[id.index()] = Some(SiteTables::new(delta, k));
        }
        self.slots[slot.0 as usize] = Some(Slot { data, sites });
        self.survey();
        Ok(())
    }

    /// Empties a slot.
    pub(in crate::cpu) fn detach(&mut self, slot: SlotId) -> Result<()> {
        slot.check(self.count(), "none")?;
        self.slots[slot.0 as usize] = None;
        self.survey();
        Ok(())
    }

    fn survey(&mut self) {
        let tables = || {
            let slots = self.slots.iter().flatten();
            slots.flat_map(|s| s.sites.iter().flatten())
        };
        let most = tables().map(SiteTables::lows).max().unwrap_or(0);
        let gains = tables().any(SiteTables::gains_input);
        (self.most_lows, self.gains_inputs) = (most, gains);
    }

    /// Whether any row names a filled slot.
    pub(in crate::cpu) fn active(&self, rows: &[SlotId]) -> bool {
        rows.iter()
            .any(|s| *s != SlotId::BASE && self.slots[s.0 as usize].is_some())
    }

    /// A slot's adapter.
    pub(in crate::cpu) fn data(&self, slot: SlotId) -> Option<&SlotData> {
        Some(&self.slots.get(slot.0 as usize)?.as_ref()?.data)
    }

    /// What a slot does at a site.
    pub(in crate::cpu) fn delta(&self, slot: SlotId, site: Option<SiteId>) -> Option<&SiteTables> {
        let slot = self.slots.get(slot.0 as usize)?.as_ref()?;
        slot.sites.get(site?.index())?.as_ref()
    }

    /// Most values of `u` that any slot has for a row.
    pub(in crate::cpu) fn most_lows(&self) -> usize {
        self.most_lows
    }

    /// Whether any slot scales an input.
    pub(in crate::cpu) fn gains_inputs(&self) -> bool {
        self.gains_inputs
    }

    /// Bytes of all tables.
    pub(in crate::cpu) fn bytes(&self) -> usize {
        self.slots.iter().flatten().map(|s| s.data.bytes()).sum()
    }

    /// Slots beside BASE.
    fn count(&self) -> u32 {
        self.slots.len() as u32 - 1
    }
}
