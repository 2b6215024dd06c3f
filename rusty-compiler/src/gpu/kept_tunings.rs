//! How much [tuning](super::tuner) tries for a plan, and where what it found is kept.

use crate::plan::{Anchor, ContractionFamily, Kernel, Plan, Tuning};
use crate::{BindOptions, KvFormat, PAGE_TOKENS, device_cache};
use rusty_backend::cuda::nvrtc;
use std::collections::BTreeMap;
use std::time::Duration;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Bytes of weights of a step below which a family is left as guessed, or of keys and values below which attention is.
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

/// Tokens of the deep context at which attention is measured, where there is room for them.
const DEEP: u32 = 8192;

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

/// Tokens of a short and of a deep context at which attention is measured, as far as the cache has room; none where a row reads little
/// even of the deep one.
pub(super) fn contexts(plan: &Plan, options: &BindOptions, effort: &Effort) -> Option<[u32; 2]> {
    let room = options.pages.saturating_mul(PAGE_TOKENS as u32);
    let deep = 1u32 << room.min(plan.context).min(DEEP).checked_ilog2()?;
    let short = deep / 8;
    let reads = cache_bytes(plan, options.kv, deep);
    (short >= PAGE_TOKENS as u32 && reads >= effort.least_bytes).then_some([short, deep])
}

/// Bytes of keys and values that a row reads at the end of a context.
pub(super) fn cache_bytes(plan: &Plan, kv: KvFormat, context: u32) -> u64 {
    let of = |kernel: &Kernel| match &kernel.anchor {
        Anchor::Attention { spec, .. } => {
            let layer = &plan.kv[spec.layer as usize];
            let lanes = [layer.key_lanes(), layer.value_lanes()];
            let seen = spec.window.map_or(context, |window| window.min(context));
            lanes.map(|l| kv.bytes(l.into())).iter().sum::<u64>() * u64::from(seen)
        }
        _ => 0,
    };
    plan.kernels.iter().map(of).sum()
}

/// Where what was found for a plan is kept: by what it is measured on, and by the kernels that it does without, because others are
/// compared where some are left out.
pub(super) fn kept_name(plan: &Plan, options: &BindOptions, effort: &Effort) -> Option<String> {
    let families = families(plan, effort);
    let target = &plan.target;
    let facts = (
        target.plane(),
        target.orders_groups,
        target.packed_dot,
        target.f16,
        &target.matrix_tiles,
    );
    let cache = (&plan.kv, options.kv, contexts(plan, options, effort));
    let mut without: Vec<String> = plan.excluded.iter().map(ToString::to_string).collect();
    without.sort();
    let digest = nvrtc::digest(&format!("{families:?} {cache:?} {facts:?} {without:?}"));
    (!families.is_empty()).then(|| device_cache::name("tuned", &plan.target, &digest))?
}

/// What an earlier process found for a plan that is bound so and does without the same kernels.
pub fn kept(plan: &Plan, options: &BindOptions, effort: &Effort) -> Option<Tuning> {
    let kept = rusty_backend::cache::load(&kept_name(plan, options, effort)?)?;
    serde_json::from_slice(&kept).ok()
}
