//! Slot tables: the run-time operands by which adapters reach fused kernels.
//!
//! For row `i` whose slot is `s`, a site computes
//!
//! ```text
//! y[i] = gain_out[s] * (W (gain_in[s] * x[i]) + B[s] (scale[s] * (A[s] x[i]))) + bias[s]
//! ```
//!
//! and the plain product where `s` is [`SlotId::BASE`]. Attaching, detaching and re-weighting edit
//! tables only; no kernel is compiled. (LoRA: arXiv 2106.09685; ragged batches of adapters: Punica,
//! arXiv 2310.18547.)

use rusty_graph::SiteId;
use std::sync::Arc;

/// Which adapter a row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SlotId(pub u32);

impl SlotId {
    /// No adapter.
    pub const BASE: SlotId = SlotId(0);
}

/// A low-rank factor in the precision it came in.
#[derive(Clone, Debug)]
pub enum DeltaTable {
    /// Single precision.
    F32(Arc<[f32]>),
    /// Half precision.
    F16(Arc<[half::f16]>),
}

impl DeltaTable {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            DeltaTable::F32(v) => v.len(),
            DeltaTable::F16(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match self {
            DeltaTable::F32(v) => v.len() * 4,
            DeltaTable::F16(v) => v.len() * 2,
        }
    }

    /// Value `i` in single precision.
    pub fn get(&self, i: usize) -> f32 {
        match self {
            DeltaTable::F32(v) => v[i],
            DeltaTable::F16(v) => v[i].to_f32(),
        }
    }
}

/// What an adapter does at one site of width `k -> n`.
#[derive(Clone, Debug)]
pub struct SiteDelta {
    /// Rank; 0 where only gains or a bias act.
    pub rank: u32,
    /// `A`, `[rank, k]`.
    pub a: DeltaTable,
    /// `B`, `[n, rank]`.
    pub b: DeltaTable,
    /// One factor per rank, `[rank]`.
    pub scale: Arc<[f32]>,
    /// Factor on the input, `[k]`.
    pub gain_in: Option<Arc<[f32]>>,
    /// Factor on the output, `[n]`.
    pub gain_out: Option<Arc<[f32]>>,
    /// Added last, `[n]`.
    pub bias: Option<Arc<[f32]>>,
}

/// One adapter, ready for a slot.
#[derive(Clone, Debug)]
pub struct SlotData {
    /// For messages and accounting.
    pub name: String,
    /// Deltas by site, ascending, each site at most once.
    pub sites: Vec<(SiteId, SiteDelta)>,
}

impl SlotData {
    /// The delta at a site.
    pub fn site(&self, site: SiteId) -> Option<&SiteDelta> {
        self.sites
            .binary_search_by_key(&site, |(s, _)| *s)
            .ok()
            .map(|i| &self.sites[i].1)
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        let vector = |v: &Option<Arc<[f32]>>| v.as_ref().map_or(0, |v| v.len() * 4);
        self.sites
            .iter()
            .map(|(_, d)| {
                d.a.bytes()
                    + d.b.bytes()
                    + d.scale.len() * 4
                    + vector(&d.gain_in)
                    + vector(&d.gain_out)
                    + vector(&d.bias)
            })
            .sum()
    }
}
