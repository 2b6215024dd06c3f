//! Random adapters of a given rank, for measuring speed without a download.

use crate::Precision;
use crate::compact::compact;
use rusty_compiler::delta_table::PANEL;
use rusty_compiler::interleaving::Factor;
use rusty_compiler::{DeltaTable, SiteDelta, SlotData};
use rusty_graph::{Site, SiteId};
use rusty_loader::Format;

/// A LoRA of rank `rank` on all linear layers of `sites` but the head and those of experts, small enough not to upset a model, in half precision
/// unless another is asked for. The same `seed` gives the same adapter.
///
/// PEFT's `target_modules="all-linear"` leaves the head out, so that adapters that are trained have none there, and with a large
/// vocabulary it would be a fifth of the bytes; it leaves experts out, too, where checkpoints store them as parameters.
pub fn random(name: &str, sites: &[Site], rank: u32, seed: u64, precision: Precision) -> SlotData {
    let wanted = |site: &Site| !site.is_head() && !site.grouped;
    low_rank(name, sites, &wanted, rank, seed, precision)
}

/// As [`random()`], on the head and all experts, too: for checking what adapters do to logits themselves.
pub fn random_with_head(
    name: &str,
    sites: &[Site],
    rank: u32,
    seed: u64,
    precision: Precision,
) -> SlotData {
    low_rank(name, sites, &|_| true, rank, seed, precision)
}

/// A LoRA on the sites that are `wanted`.
fn low_rank(
    name: &str,
    sites: &[Site],
    wanted: &dyn Fn(&Site) -> bool,
    rank: u32,
    seed: u64,
    precision: Precision,
) -> SlotData {
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
    let acting = sites.iter().enumerate().filter(|(_, site)| wanted(site));
    let deltas = acting.map(|(id, site)| {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str, k: u32, n: u32) -> Site {
        let name = name.into();
        Site {
            name,
            k,
            n,
            grouped: false,
        }
    }

    #[test]
    fn only_the_head_is_left_out() {
        let sites = [
            site("blk.0.attn_output", 64, 64),
            site("output", 64, 96),
            site("blk.0.ffn_up", 64, 128),
        ];
        let places = |adapter: SlotData| -> Vec<usize> {
            adapter.sites.iter().map(|(id, _)| id.index()).collect()
        };
        assert_eq!(places(random("r", &sites, 4, 1, Precision::F16)), [0, 2]);
        let with_head = random_with_head("r", &sites, 4, 1, Precision::F16);
        assert_eq!(places(with_head), [0, 1, 2]);
    }

    /// No table is padded to a larger rank: its bytes are its values', and half the ranks have half of them, but for the scales
    /// of outputs in bytes.
    #[test]
    fn bytes_follow_the_rank() {
        let sites = [site("blk.0.attn_q", 64, 128), site("blk.0.ffn_up", 96, 64)];
        let (inputs, outputs) = ((64 + 96) / 32, (128 + 64) / 32);
        for rank in [4usize, 8, 16, 32] {
            let factors = sites.len() * rank.next_multiple_of(16) * size_of::<f32>();
            let of = [
                (Precision::F16, (inputs + outputs) * 64 * rank),
                (
                    Precision::Int8,
                    inputs * 34 * rank + outputs * (32 * rank + 64) + factors,
                ),
                (Precision::Int4, (inputs + outputs) * 18 * rank),
            ];
            for (precision, tables) in of {
                let adapter = random("r", &sites, rank as u32, 1, precision);
                let scales = sites.len() * rank * size_of::<f32>();
                assert_eq!(
                    adapter.bytes(),
                    tables + scales,
                    "{precision:?} of rank {rank}"
                );
            }
        }
    }
}
