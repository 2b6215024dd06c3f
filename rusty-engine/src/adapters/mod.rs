//! Adapters of an engine: any number registered, some of them in the executable's slots.
//!
//! A session names adapters by an [`AdapterSet`]: one, several with weights, or none. What a set computes is one
//! *slot* of the executable, found or filled when an answer starts. Slots are a cache: where all are taken, the one
//! that was used longest ago and that no running answer needs makes room. Adapters that came from files may leave
//! memory altogether and are read again when they are wanted.
//!
//! Keys and values belong to the exact set and weights with which they were computed; a session whose set or whose
//! adapters' weights changed starts from an empty cache.

mod attach;
mod mixing;
mod registry;
mod roster;
mod set;
mod source;

pub(crate) use mixing::{Mixture, Mixtures, ReadTables, Recipe, made_for, plain};
pub(crate) use registry::{Acquired, Registry, Resolved, is_full};
pub(crate) use roster::{Arrival, Roster};
pub use set::{AdapterId, AdapterSet};
pub(crate) use source::Source;

/// Where an adapter's tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// In a slot of the executable.
    Device,
    /// In host memory.
    Host,
    /// In its file only.
    Disk,
}

/// Bytes that adapters may hold; what is least recently used makes room. Pinned adapters stay; where they hold a budget alone, one adapter more
/// is taken in beside them for as long as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterBudget {
    /// Bytes in slots. Answers that run with more take turns.
    pub device: u64,
    /// Bytes in host memory. Adapters that came from files are dropped from it where that frees something: not those that a
    /// CPU's slot reads where they lie, but those of which a GPU has a copy. They are read again when another slot or
    /// mixture wants them.
    pub host: u64,
}

/// Bytes that adapters hold, as an [`AdapterBudget`] counts them: what is in a device's slot and in the host's memory too is
/// part of both, and so is what a CPU's slots read where it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AdapterMemory {
    /// Bytes in slots.
    pub device: u64,
    /// Bytes in host memory.
    pub host: u64,
}

impl Default for AdapterBudget {
    fn default() -> Self {
        Self {
            device: u64::MAX,
            host: u64::MAX,
        }
    }
}

/// What is known of a registered adapter.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct AdapterStatus {
    /// Which.
    pub id: AdapterId,
    /// Name.
    pub name: String,
    /// Bytes of its tables.
    pub bytes: u64,
    /// What of them is in the host's memory now.
    pub host_bytes: u64,
    /// Where they are.
    pub tier: Tier,
    /// Whether it stays where it is.
    pub pinned: bool,
    /// Weight in every set that names it, times the set's own.
    pub weight: f32,
    /// Sessions whose set names it.
    pub sessions: usize,
    /// Largest rank.
    pub rank: u32,
    /// Virtual tokens in front of every sequence.
    pub virtual_tokens: u32,
    /// Seconds that reading and preparing it took the last time; 0 for those that were given ready.
    pub prepared_s: f64,
}

/// What happens to answers that run with an adapter whose weight changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnRunning {
    /// The change is refused.
    #[default]
    Refuse,
    /// They go on with the new weight: what they have so far is computed again.
    Recompute,
}
