//! How much [tuning](super::tuner) tries for a plan, and where what it found is kept.

use crate::device_cache;
use crate::plan::{Anchor, ContractionFamily, Plan, Tuning};
use rusty_backend::cuda::nvrtc;
use std::collections::BTreeMap;
use std::time::Duration;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Bytes of weights of a step below which a family is left as guessed.
    pub least_bytes: u64,
    /// Cubes of a launch below which a cut is not tried, because processors would be idle.
    pub fewest_cubes: u32,
    /// Steps of which the fastest counts.
    pub repetitions: usize,
    /// Time after which nothing more is tried.
    pub limit: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            least_bytes: 16 << 20,
            fewest_cubes: 64,
            repetitions: 12,
            limit: Duration::from_secs(30),
        }
    }
}

/// Families of a plan of which a step reads enough, those of most bytes first.
pub(super) fn families(plan: &Plan, effort: &Effort) -> Vec<ContractionFamily> {
    let mut bytes: BTreeMap<ContractionFamily, u64> = BTreeMap::new();
    for kernel in &plan.kernels {
        if let (Some(family), Anchor::Contract { parts, .. }) =
            (ContractionFamily::of(plan, &kernel.anchor), &kernel.anchor)
        {
            let of = parts.iter().map(|p| plan.weights[p.weight.index()].bytes());
            *bytes.entry(family).or_default() += of.sum::<u64>();
        }
    }
    let mut all: Vec<_> = bytes.into_iter().collect();
    all.retain(|(_, bytes)| *bytes >= effort.least_bytes);
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    all.into_iter().map(|(family, _)| family).collect()
}

/// Where what was found for a plan is kept.
pub(super) fn kept_name(plan: &Plan, effort: &Effort) -> Option<String> {
    let families = families(plan, effort);
    let target = &plan.target;
    let facts = (target.plane_ops, target.packed_dot, &target.matrix_tiles);
    let digest = nvrtc::digest(&format!("{families:?} {facts:?}"));
    (!families.is_empty()).then(|| device_cache::name("tuned", &plan.target, &digest))?
}

/// What an earlier process found for a plan.
pub fn kept(plan: &Plan, effort: &Effort) -> Option<Tuning> {
    let kept = rusty_backend::cache::load(&kept_name(plan, effort)?)?;
    serde_json::from_slice(&kept).ok()
}
