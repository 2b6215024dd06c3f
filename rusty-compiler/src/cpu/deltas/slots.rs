//! Adapter slots on the CPU: which slot does what at a site, and how much room that takes.
//!
//! Tables are read where they lie, so attaching an adapter costs no more than noting where they are. For a
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
    /// The tables in `data`.
    tables: Vec<SiteTables>,
    /// By site, the number of its tables counted from one; 0 where there are none. Models of many experts have tens of thousands of
    /// sites.
    by_site: Vec<u32>,
    lows: Lows,
}

/// Most values of `u` for a row.
#[derive(Clone, Copy, Default)]
pub(in crate::cpu) struct Lows {
    /// At the sites of contractions.
    pub(in crate::cpu) contracts: usize,
    /// At those of experts and heads, for each of a row's products.
    pub(in crate::cpu) grouped: usize,
}

impl Lows {
    fn or(self, other: Self) -> Self {
        Self {
            contracts: self.contracts.max(other.contracts),
            grouped: self.grouped.max(other.grouped),
        }
    }
}

/// All slots; index 0 is BASE.
pub(in crate::cpu) struct SlotTable {
    slots: Vec<Option<Slot>>,
    most: Lows,
    gains_inputs: bool,
}

impl SlotTable {
    /// Empty slots `1 ..= slots`.
    pub(in crate::cpu) fn new(slots: u32) -> Self {
        Self {
            slots: (0..=slots).map(|_| None).collect(),
            most: Lows::default(),
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
        let mut tables = Vec::with_capacity(data.sites.len());
        let mut by_site = vec![0; shape.sites.len()];
        let mut lows = Lows::default();
        for (id, delta) in &data.sites {
            let site = &shape.sites[id.index()];
            let own = SiteTables::new(delta, site.k as usize);
            let most = match site.grouped {
                true => &mut lows.grouped,
                false => &mut lows.contracts,
            };
            *most = own.lows().max(*most);
            tables.push(own);
            by_site[id.index()] = tables.len() as u32;
        }
        self.slots[slot.0 as usize] = Some(Slot {
            data,
            tables,
            by_site,
            lows,
        });
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
        let slots = || self.slots.iter().flatten();
        self.most = slots().fold(Lows::default(), |most, slot| most.or(slot.lows));
        self.gains_inputs = slots().any(|s| s.tables.iter().any(SiteTables::gains_input));
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
        let number = *slot.by_site.get(site?.index())?;
        slot.tables.get((number as usize).checked_sub(1)?)
    }

    /// Most values of `u` that any slot has for a row.
    pub(in crate::cpu) fn most_lows(&self) -> Lows {
        self.most
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
