//! Several adapters as one: a weighted sum of deltas is one delta of stacked ranks.

use rusty_compiler::{DeltaTable, SiteDelta, SlotData};
use rusty_graph::SiteId;
use std::collections::BTreeMap;

/// The sum of adapters, each times its weight: `A`s stacked, `B`s side by side, weights in the scales.
///
/// Adapters with gains or biases are not linear in this sense; plain LoRA, which is what is read here, has none.
pub fn combine(adapters: &[(SlotData, f32)]) -> SlotData {
    let mut by_site: BTreeMap<SiteId, Vec<(&SiteDelta, f32)>> = BTreeMap::new();
    for (adapter, weight) in adapters {
        for (site, delta) in &adapter.sites {
            by_site.entry(*site).or_default().push((delta, *weight));
        }
    }
    let name = adapters.iter().map(|(a, w)| {
        if *w == 1.0 {
            a.name.clone()
        } else {
            format!("{}={w}", a.name)
        }
    });
    SlotData {
        name: name.collect::<Vec<_>>().join("+"),
        sites: by_site
            .into_iter()
            .map(|(site, deltas)| (site, stack(&deltas)))
            .collect(),
    }
}

fn stack(deltas: &[(&SiteDelta, f32)]) -> SiteDelta {
    let rank: usize = deltas.iter().map(|(d, _)| d.rank as usize).sum();
    let rows = deltas
        .iter()
        .map(|(d, _)| d.b.len() / d.rank.max(1) as usize)
        .max()
        .unwrap_or(0);
    let scale: Vec<f32> = deltas
        .iter()
        .flat_map(|(d, w)| d.scale.iter().map(move |s| s * w))
        .collect();
    let half = deltas
        .iter()
        .all(|(d, _)| matches!((&d.a, &d.b), (DeltaTable::F16(_), DeltaTable::F16(_))));
    let a = deltas
        .iter()
        .flat_map(|(d, _)| (0..d.a.len()).map(|i| d.a.get(i)));
    let b = (0..rows).flat_map(|row| {
        deltas.iter().flat_map(move |(d, _)| {
            let rank = d.rank as usize;
            (0..rank).map(move |r| d.b.get(row * rank + r))
        })
    });
    let table = |values: Vec<f32>| {
        if half {
            DeltaTable::F16(values.into_iter().map(half::f16::from_f32).collect())
        } else {
            DeltaTable::F32(values.into())
        }
    };
    SiteDelta {
        rank: rank as u32,
        a: table(a.collect()),
        b: table(b.collect()),
        scale: scale.into(),
        gain_in: None,
        gain_out: None,
        bias: None,
    }
}
