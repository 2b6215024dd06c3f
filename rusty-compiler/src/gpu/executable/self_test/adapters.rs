//! Random adapters for the sites of one kernel: tables of two of the formats that engines hold them in, ranks that are no whole
//! quartets, and of one factors on inputs and outputs and biases, as DoRA and IA3 have them.

use super::inputs::noise;
use crate::delta_table::DeltaTable;
use crate::plan::{Kernel, Plan};
use crate::slots::{SiteDelta, SlotData};
use crate::{Error, Result};
use rusty_graph::{Site, SiteId};
use rusty_loader::Format;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Formats and ranks, by slot, and whether there are gains. Bytes have a second block of ranks.
const TABLES: [(&str, usize, bool); 2] = [("f16", 5, false), ("q8_0", 37, true)];

/// As many adapters, at most one for each of [`TABLES`].
pub(in crate::gpu::executable) fn random(
    plan: &Plan,
    kernel: &Kernel,
    count: u32,
) -> Result<Vec<Arc<SlotData>>> {
    let sites: BTreeSet<SiteId> = kernel.sites().flatten().collect();
    let tables = TABLES.iter().zip(1..).take(count as usize);
    let adapters = tables.map(|(table, number)| adapter(plan, &sites, *table, number));
    adapters.collect()
}

fn adapter(
    plan: &Plan,
    sites: &BTreeSet<SiteId>,
    (format, rank, gains): (&str, usize, bool),
    number: u32,
) -> Result<Arc<SlotData>> {
    let format = Format::by_name(format);
    // Of hundreds of experts every third one has the same tables: a wrong one would be a neighbour's, or of another part.
    let mut known: BTreeMap<(u32, u32, u32), SiteDelta> = BTreeMap::new();
    let deltas = sites.iter().map(|id| {
        let site = &plan.sites[id.index()];
        let of = if site.grouped { id.0 % 3 } else { id.0 };
        let seed = 100 * number + 2 * of;
        let key = (seed, site.k, site.n);
        if let Some(delta) = known.get(&key) {
            return Ok((*id, delta.clone()));
        }
        let made = format.and_then(|format| delta(site, format, rank, seed));
        // Rows may be no whole blocks.
        let made = made.or_else(|| delta(site, Format::F32, rank, seed));
        let lacks = || Error::Step(format!("no adapter can be made for {}", site.name));
        let made = made.ok_or_else(lacks)?;
        let delta = if gains {
            with_gains(made, site, seed)
        } else {
            made
        };
        known.insert(key, delta.clone());
        Ok((*id, delta))
    });
    Ok(Arc::new(SlotData {
        name: "self-test".into(),
        sites: deltas.collect::<Result<_>>()?,
        ..SlotData::default()
    }))
}

/// Random factors; none where rows are no whole blocks of the format.
fn delta(site: &Site, format: Format, rank: usize, seed: u32) -> Option<SiteDelta> {
    let (k, n) = (site.k as usize, site.n as usize);
    let a = (0..(rank * k) as u32).map(|i| 0.1 * noise(seed, i));
    let a = DeltaTable::ranks(format, rank, k, &a.collect::<Vec<f32>>())?;
    let b = |c: usize, r: usize| 0.3 * noise(seed + 1, (c * rank + r) as u32);
    Some(SiteDelta {
        rank: rank as u32,
        a: Some(a),
        b: Some(DeltaTable::panels(format, n, rank, b)?),
        scale: vec![1.0; rank].into(),
        ..SiteDelta::default()
    })
}

/// With factors near 1 and a bias.
fn with_gains(delta: SiteDelta, site: &Site, seed: u32) -> SiteDelta {
    let numbers = |count: u32, start: f32, seed: u32| -> Option<Arc<[f32]>> {
        Some((0..count).map(|i| start + 0.2 * noise(seed, i)).collect())
    };
    SiteDelta {
        gain_in: match site.grouped {
            true => None,
            false => numbers(site.k, 1.0, seed + 50),
        },
        gain_out: numbers(site.n, 1.0, seed + 51),
        bias: numbers(site.n, 0.0, seed + 52),
        ..delta
    }
}
