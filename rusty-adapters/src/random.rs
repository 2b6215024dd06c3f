//! Random adapters of a given rank on every site, for measuring speed without a download.

use rusty_compiler::{DeltaTable, SiteDelta, SlotData};
use rusty_graph::{Site, SiteId};

/// A LoRA of rank `rank` with half-precision tables on all of `sites`, small enough not to upset a model.
/// The same `seed` gives the same adapter.
pub fn random(name: &str, sites: &[Site], rank: u32, seed: u64) -> SlotData {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut table = |len: usize, spread: f32| -> DeltaTable {
        let values = (0..len).map(|_| {
            // xorshift64 (Marsaglia 2003): quality is of no matter here, speed is.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            half::f16::from_f32(((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * spread)
        });
        DeltaTable::F16(values.collect())
    };
    let deltas = sites.iter().enumerate().map(|(id, site)| {
        let delta = SiteDelta {
            rank,
            a: table(
                rank as usize * site.k as usize,
                1.0 / (site.k as f32).sqrt(),
            ),
            b: table(site.n as usize * rank as usize, 0.01),
            scale: vec![1.0; rank as usize].into(),
            gain_in: None,
            gain_out: None,
            bias: None,
        };
        (SiteId(id as u32), delta)
    });
    SlotData {
        name: name.into(),
        sites: deltas.collect(),
    }
}
