//! Smaller adapters: pruned, block-sparse, and in fewer bits.
//!
//! Each rank is a product of a column of `B` and a row of `A`, whose sizes mean nothing apart: before pruning they are
//! scaled to equal norms, so that one bound over all factors of an adapter takes what matters least to the product.
//! Ranks of which nothing is left are dropped. A pruned adapter's tables are full of zeros, which the deflated
//! [`crate::packed`] file stores in next to nothing.

use crate::base_model::Base;
use crate::factors::{a_values, b_values, transposed};
use crate::precision::Precision;
use crate::shared::Shared;
use rusty_compiler::delta_table::PANEL;
use rusty_compiler::{DeltaTable, SiteDelta, SlotData};
use rusty_loader::Format;
use std::collections::{HashMap, HashSet};

/// Which of the factors' values are taken out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pruning {
    /// None.
    Nothing,
    /// This share of single values, the smallest.
    Values(f32),
    /// This share of runs of 32 values, those of the smallest norm.
    Blocks(f32),
}

/// An adapter with this pruned, in this precision; where nothing is, in the stored one, it is the adapter itself. Gains, biases,
/// embeddings and identities stay as they are; factors that sites share or that act in blocks, which are few, are not pruned.
pub fn compress(
    adapter: &SlotData,
    base: &Base<'_>,
    pruning: Pruning,
    precision: Precision,
) -> SlotData {
    let common = common(adapter, base);
    let whole = |delta: &SiteDelta| {
        let tables = [&delta.a, &delta.b].into_iter().flatten();
        // Where nothing is pruned, scaling to equal norms would only round.
        let kept = pruning == Pruning::Nothing && delta.a.is_some();
        kept || !delta.is_plain() || tables.map(place).any(|at| common.contains(&at))
    };
    let drafts = adapter.sites.iter().map(|(id, delta)| {
        let site = base.graph.site(*id);
        Factors::of(delta, whole(delta), site.k as usize, site.n as usize)
    });
    let mut drafts: Vec<Factors> = drafts.collect();
    let (length, share) = match pruning {
        Pruning::Nothing => (1, 0.0),
        Pruning::Values(share) => (1, share),
        Pruning::Blocks(share) => (PANEL, share),
    };
    let runs = drafts
        .iter()
        .flat_map(|d| d.runs(length))
        .map(|r| norm(r) / r.len() as f32);
    let mut sizes: Vec<f32> = runs.collect();
    let taken = (f64::from(share.clamp(0.0, 1.0)) * sizes.len() as f64) as usize;
    if taken > 0 {
        sizes.sort_unstable_by(f32::total_cmp);
        let bound = sizes[taken - 1];
        // Of runs that are as large as the last one, as many as are left to take.
        let mut ties = taken - sizes.partition_point(|size| *size < bound);
        for draft in &mut drafts {
            draft.prune(length, bound, &mut ties);
        }
    }
    if pruning != Pruning::Nothing && adapter.sites.iter().any(|(_, delta)| whole(delta)) {
        let name = &adapter.name;
        tracing::warn!(
            "{name} has factors that sites share or that act in blocks: they are not pruned"
        );
    }
    let mut shared = Shared::default();
    let sites = adapter.sites.iter().zip(drafts);
    let sites = sites.map(|((id, delta), draft)| {
        let mut small = draft.delta(delta, precision);
        if whole(delta) {
            precision.apply(&mut small, &mut shared);
        }
        (*id, small)
    });
    let acts = |d: &SiteDelta| {
        d.rank > 0 || d.gain_in.is_some() || d.gain_out.is_some() || d.bias.is_some()
    };
    let sites = sites.filter(|(_, delta)| acts(delta));
    SlotData {
        sites: sites.collect(),
        ..adapter.clone()
    }
}

/// Where a table lies.
fn place(table: &DeltaTable) -> usize {
    table.bytes().as_ptr().addr()
}

/// Tables that three and more experts or heads have in common: those of an attention's latent, for one. Gate and up that were one
/// module have two.
fn common(adapter: &SlotData, base: &Base<'_>) -> HashSet<usize> {
    let mut seen: HashMap<usize, usize> = HashMap::new();
    let grouped = adapter
        .sites
        .iter()
        .filter(|(id, _)| base.graph.site(*id).grouped);
    let tables = grouped.flat_map(|(_, delta)| [&delta.a, &delta.b].into_iter().flatten());
    for table in tables.filter(|table| table.bytes().iter().any(|byte| *byte != 0)) {
        *seen.entry(place(table)).or_default() += 1;
    }
    let common = seen.into_iter().filter(|(_, sites)| *sites > 2);
    common.map(|(at, _)| at).collect()
}

/// Square norm of a run.
fn norm(run: &[f32]) -> f32 {
    run.iter().map(|v| v * v).sum()
}

/// Factors whose ranks have equal norms on both sides; empty where `A` is the identity, and where factors are shared or act on
/// blocks, which are small as they are.
struct Factors {
    k: usize,
    n: usize,
    /// `[rank, k]`.
    a: Vec<f32>,
    /// `[rank, n]`: a column of `B` is a row here.
    b: Vec<f32>,
}

impl Factors {
    fn of(delta: &SiteDelta, whole: bool, k: usize, n: usize) -> Self {
        if delta.a.is_none() || whole {
            return Self {
                k,
                n,
                a: vec![],
                b: vec![],
            };
        }
        let rank = delta.rank as usize;
        let mut a = a_values(delta, k);
        let mut b = transposed(&b_values(delta, n), n, rank);
        let ranks = a.chunks_exact_mut(k).zip(b.chunks_exact_mut(n));
        for ((a, b), scale) in ranks.zip(delta.scale.iter()) {
            b.iter_mut().for_each(|v| *v *= scale);
            let (left, right) = (norm(a).sqrt(), norm(b).sqrt());
            if left > 0.0 && right > 0.0 {
                let factor = (right / left).sqrt();
                a.iter_mut().for_each(|v| *v *= factor);
                b.iter_mut().for_each(|v| *v /= factor);
            }
        }
        Self { k, n, a, b }
    }

    fn runs(&self, length: usize) -> impl Iterator<Item = &[f32]> {
        let rows = self
            .a
            .chunks_exact(self.k)
            .chain(self.b.chunks_exact(self.n));
        rows.flat_map(move |row| row.chunks(length))
    }

    /// Takes out runs that are smaller than the bound, and so many of those that are as large.
    fn prune(&mut self, length: usize, bound: f32, ties: &mut usize) {
        let (a, b) = (
            self.a.chunks_exact_mut(self.k),
            self.b.chunks_exact_mut(self.n),
        );
        for run in a.chain(b).flat_map(|row| row.chunks_mut(length)) {
            let size = norm(run) / run.len() as f32;
            if size < bound {
                run.fill(0.0);
            } else if size == bound && *ties > 0 {
                *ties -= 1;
                run.fill(0.0);
            }
        }
    }

    fn delta(self, old: &SiteDelta, precision: Precision) -> SiteDelta {
        if self.a.is_empty() {
            return old.clone();
        }
        let pairs = self.a.chunks_exact(self.k).zip(self.b.chunks_exact(self.n));
        let left = |row: &[f32]| row.iter().any(|v| *v != 0.0);
        let kept: Vec<(&[f32], &[f32])> = pairs.filter(|(a, b)| left(a) && left(b)).collect();
        let rank = kept.len();
        let a: Vec<f32> = kept.iter().flat_map(|(a, _)| a.iter().copied()).collect();
        let stored = |t: &Option<DeltaTable>| t.as_ref().map_or(Format::F32, DeltaTable::format);
        let a_format = precision.format(stored(&old.a), self.k);
        let b_format = precision.format(stored(&old.b), PANEL);
        let mut delta = SiteDelta {
            rank: rank as u32,
            a: None,
            b: None,
            scale: vec![1.0; rank].into(),
            ..old.clone()
        };
        if rank > 0 {
            delta.a = DeltaTable::ranks(a_format, rank, self.k, &a);
            delta.b = DeltaTable::panels(b_format, self.n, rank, |c, r| kept[r].1[c]);
        }
        match rank == 0 || (delta.a.is_some() && delta.b.is_some()) {
            true => delta,
            false => old.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusty_graph::SiteId;

    /// Two formats for the factors of a site, and scales that are no powers of two.
    fn adapter() -> SlotData {
        let number = |i: usize| ((i * 37) % 64) as f32 / 160.0 - 0.2;
        let values: Vec<f32> = (0..2 * 64).map(number).collect();
        let delta = SiteDelta {
            rank: 2,
            a: DeltaTable::ranks(Format::F16, 2, 64, &values),
            b: DeltaTable::panels(Format::Bf16, 64, 2, |c, r| number(c * 5 + r)),
            scale: vec![0.3, 7.0].into(),
            ..SiteDelta::default()
        };
        SlotData {
            sites: vec![(SiteId(0), delta)],
            ..SlotData::default()
        }
    }

    #[test]
    fn what_is_neither_pruned_nor_converted_is_kept_to_the_bit() {
        let file = rusty_loader::random::outline("llama-tiny", "bf16").expect("a model");
        let graph = rusty_graph::arch::build(&*file).expect("a network");
        let base = Base::new(&graph, &*file);
        let whole = adapter();
        let same = compress(&whole, &base, Pruning::Nothing, Precision::Stored);
        let [(id, have)] = &same.sites[..] else {
            panic!("{} sites", same.sites.len());
        };
        let want = &whole.sites[0].1;
        assert_eq!((*id, have.rank, &have.scale), (SiteId(0), 2, &want.scale));
        for (have, want) in [(&have.a, &want.a), (&have.b, &want.b)] {
            let (have, want) = (have.as_ref().expect("one"), want.as_ref().expect("one"));
            assert_eq!(have.format(), want.format());
            assert!(have.bytes()[..] == want.bytes()[..]);
        }
    }
}
