//! Random adapters of a given rank on every site, for measuring speed without a download.

use crate::Precision;
use crate::compact::compact;
use rusty_compiler::delta_table::PANEL;
use rusty_compiler::interleaving::Factor;
use rusty_compiler::{DeltaTable, SiteDelta, SlotData};
use rusty_graph::{Site, SiteId};
use rusty_loader::Format;

/// A LoRA of rank `rank` on all of `sites`, small enough not to upset a model, in half precision unless another is
/// asked for. The same `seed` gives the same adapter.
pub fn random(name: &str, sites: &[Site], rank: u32, seed: u64, precision: Precision) -> SlotData {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut table = |factor: Factor, rows: usize, columns: usize, spread: f32| {
        let values = (0..rows * columns).map(|_| {
            // xorshift64 (Marsaglia 2003): quality is of no matter here, speed is.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * spread
        });
        let values: Vec<f32> = values.collect();
        let format = precision.format(Format::F16, columns);
        DeltaTable::encode(format, Some(factor), rows, columns, &values)
    };
    let deltas = sites.iter().enumerate().map(|(id, site)| {
        let (k, n, ranks) = (site.k as usize, site.n as usize, rank as usize);
        let delta = SiteDelta {
            rank,
            a: table(Factor::A, ranks, k, 1.0 / (k as f32).sqrt()),
            b: table(
                Factor::B { rank: ranks },
                n.div_ceil(PANEL) * ranks,
                PANEL,
                0.01,
            ),
            scale: vec![1.0; rank as usize].into(),
            ..SiteDelta::default()
        };
        (SiteId(id as u32), delta)
    });
    compact(SlotData {
        name: name.into(),
        sites: deltas.collect(),
        ..SlotData::default()
    })
}
