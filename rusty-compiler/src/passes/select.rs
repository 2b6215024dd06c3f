//! Kernel choice: an ordered table of rules over plain target facts. For each range of rows the first rule
//! that matches wins, and EXPLAIN shows which.

use crate::plan::byte_codes::ByteCodes;
use crate::plan::exclusion::{HALVES, SHRINK_INSIDE};
use crate::plan::{
    Anchor, ContractionFamily, Element, Exclusion, ExpertPart, ExpertWay, Implementation, Kernel,
    Part, Plan, PlanValue, PlanValueId, Variant, Work,
};
use crate::{Error, Result};
use rusty_backend::{Family, Language, Target};
use rusty_graph::WeightId;
use rusty_loader::Format;

/// One way to run one kind of anchor.
struct Rule {
    anchor: fn(&Plan, &Anchor) -> bool,
    /// Largest number of rows it is good for.
    up_to: fn(&Plan, &Anchor) -> u32,
    needs: fn(&Target) -> bool,
    implementation: Implementation,
    dispatches: u32,
}

/// What helps where nothing is left.
const ADVICE: &str = "update its driver, or take another device";

/// Bytes of shared memory that nearly all devices have, which tiles of 64 rows may take: devices with less take those of 32.
pub(crate) const TALL_BYTES: u32 = 32 << 10;
/// Parts whose products such a tile has room for.
pub(crate) const TALL_PARTS: usize = 3;

/// Rows for each expert up to which products with experts are matrix-vector products.
const ROWS_PER_EXPERT: u32 = 4;

const fn rule(
    anchor: fn(&Plan, &Anchor) -> bool,
    up_to: fn(&Plan, &Anchor) -> u32,
    needs: fn(&Target) -> bool,
    implementation: Implementation,
    dispatches: u32,
) -> Rule {
    Rule {
        anchor,
        up_to,
        needs,
        implementation,
        dispatches,
    }
}

/// First match wins.
const RULES: &[Rule] = &[
    rule(contract, any, cpu, Implementation::CpuContract, 1),
    rule(attention, any, cpu, Implementation::CpuAttention, 1),
    rule(route, any, cpu, Implementation::CpuExperts, 1),
    rule(experts, any, cpu, Implementation::CpuExperts, 1),
    rule(rows, any, cpu, Implementation::CpuRows, 1),
    rule(
        short_codes,
        one,
        Target::multiplies_bytes,
        Implementation::GemvBytes,
        1,
    ),
    rule(contract, one, planes, Implementation::GemvPlane, 1),
    rule(contract, one, gpu, Implementation::GemvShared, 1),
    rule(
        short_codes,
        few,
        Target::multiplies_bytes,
        Implementation::GemvRowsBytes,
        1,
    ),
    rule(contract, few, planes, Implementation::GemvRowsPlane, 1),
    rule(contract, few, gpu, Implementation::GemvRowsShared, 1),
    rule(
        short_floats,
        small_tile,
        Target::multiplies_bf16,
        Implementation::GemmMatrix32,
        1,
    ),
    rule(
        short_floats,
        middle_tile,
        Target::multiplies_bf16,
        Implementation::GemmMatrix64,
        2,
    ),
    rule(
        short_floats,
        any,
        Target::multiplies_bf16,
        Implementation::GemmMatrix128,
        2,
    ),
    rule(contract, small_tile, gpu, Implementation::GemmTiled16, 1),
    rule(
        few_parts,
        middle_tile,
        roomy,
        Implementation::GemmTiled32,
        1,
    ),
    rule(few_parts, any, roomy, Implementation::GemmTiled64, 1),
    rule(contract, any, gpu, Implementation::GemmTiled32, 1),
    rule(attention, any, gpu, Implementation::AttentionFlash, 1),
    rule(route, any, gpu, Implementation::Route, 1),
    rule(
        short_coded_experts,
        few,
        Target::multiplies_bytes,
        Implementation::ExpertsBytes,
        1,
    ),
    rule(experts, few, planes, Implementation::ExpertsPlane, 1),
    rule(experts, few, gpu, Implementation::ExpertsShared, 1),
    rule(
        short_experts,
        any,
        Target::multiplies_bf16,
        Implementation::ExpertsMatrix,
        1,
    ),
    rule(experts, any, gpu, Implementation::ExpertsGrouped, 1),
    rule(rows, any, planes, Implementation::RowsPlane, 1),
    rule(rows, any, gpu, Implementation::RowsShared, 1),
];

fn any(_: &Plan, _: &Anchor) -> u32 {
    u32::MAX
}

fn one(_: &Plan, _: &Anchor) -> u32 {
    1
}

/// Rows up to which the smallest tile is taken, of matrix units or in single precision.
fn small_tile(plan: &Plan, _: &Anchor) -> u32 {
    plan.tuning.small_tile_rows
}

/// Rows up to which the middle one is taken; products of few lanes make too few of the larger to keep a device busy.
fn middle_tile(plan: &Plan, anchor: &Anchor) -> u32 {
    match anchor {
        Anchor::Contract { parts, .. }
            if parts.iter().map(|p| p.n).sum::<u32>() >= plan.tuning.large_tile_lanes =>
        {
            plan.tuning.middle_tile_rows
        }
        _ => u32::MAX,
    }
}

/// Rows up to which kernels of few rows are taken: of experts so many for each, of which a row takes some.
fn few(plan: &Plan, anchor: &Anchor) -> u32 {
    match anchor {
        Anchor::Experts { used, parts, .. } => {
            let experts = ExpertPart::experts(parts);
            ROWS_PER_EXPERT * experts as u32 / (*used).max(1)
        }
        _ => plan.tuning.gemv_rows,
    }
}

fn contract(_: &Plan, anchor: &Anchor) -> bool {
    matches!(anchor, Anchor::Contract { .. })
}

/// Contractions that tiles of 64 rows have room for.
fn few_parts(_: &Plan, anchor: &Anchor) -> bool {
    matches!(anchor, Anchor::Contract { parts, .. } if parts.len() <= TALL_PARTS)
}

/// Contractions whose weights lose nothing to speak of as bf16; those in F16 are not even rounded to it.
fn short_floats(plan: &Plan, anchor: &Anchor) -> bool {
    let single = |part: &Part| plan.weights[part.weight.index()].format == Format::F32;
    matches!(anchor, Anchor::Contract { parts, .. } if !parts.iter().any(single))
}

/// Contractions whose weights are multiplied as bytes, unless that was found to be slower.
fn short_codes(plan: &Plan, anchor: &Anchor) -> bool {
    let family = ContractionFamily::of(plan, anchor);
    family.is_some_and(|family| plan.tuning.teams(&family).bytes) && has_short_codes(plan, anchor)
}

/// Products whose weights can be multiplied as bytes.
pub(crate) fn has_short_codes(plan: &Plan, anchor: &Anchor) -> bool {
    let serves = |w: &WeightId| ByteCodes::serve(plan.weights[w.index()].format);
    match anchor {
        Anchor::Contract { parts, .. } => parts.iter().all(|part| serves(&part.weight)),
        Anchor::Experts { parts, .. } => parts.iter().flat_map(|part| &part.weights).all(serves),
        _ => false,
    }
}

fn short_coded_experts(plan: &Plan, anchor: &Anchor) -> bool {
    experts(plan, anchor) && has_short_codes(plan, anchor)
}

fn attention(_: &Plan, anchor: &Anchor) -> bool {
    matches!(anchor, Anchor::Attention { .. })
}

fn route(_: &Plan, anchor: &Anchor) -> bool {
    matches!(anchor, Anchor::Route { .. })
}

fn experts(_: &Plan, anchor: &Anchor) -> bool {
    matches!(anchor, Anchor::Experts { .. })
}

/// Experts whose weights lose nothing to speak of as bf16.
fn short_experts(plan: &Plan, anchor: &Anchor) -> bool {
    let single = |w: &WeightId| plan.weights[w.index()].format == Format::F32;
    match anchor {
        Anchor::Experts { parts, .. } => !parts.iter().flat_map(|p| &p.weights).any(single),
        _ => false,
    }
}

fn rows(plan: &Plan, anchor: &Anchor) -> bool {
    let others = [contract, attention, route, experts];
    !others.iter().any(|is| is(plan, anchor))
}

fn cpu(target: &Target) -> bool {
    target.family == Family::Cpu
}

fn gpu(target: &Target) -> bool {
    !cpu(target)
}

/// Whether a cube has room for tiles of 64 rows.
fn roomy(target: &Target) -> bool {
    gpu(target) && target.shared_bytes >= TALL_BYTES
}

fn planes(target: &Target) -> bool {
    gpu(target) && target.plane_ops
}

/// Chooses variants for every kernel.
pub(super) fn run(mut plan: Plan, target: &Target) -> Result<Plan> {
    for at in 0..plan.kernels.len() {
        let max = plan.max_rows(plan.kernels[at].rows);
        plan.kernels[at].variants = variants(&plan, &plan.kernels[at], target, max)?;
        scratch(&mut plan, at);
    }
    Ok(plan)
}

/// Chooses variants of contractions once more, after the plan's tuning changed.
pub(crate) fn again(plan: &mut Plan) -> Result<()> {
    for at in 0..plan.kernels.len() {
        let kernel = &plan.kernels[at];
        if let Anchor::Contract { .. } = kernel.anchor {
            let max = plan.max_rows(kernel.rows);
            plan.kernels[at].variants = variants(plan, kernel, &plan.target, max)?;
        }
    }
    Ok(())
}

/// Chooses variants of all kernels once more, without what went wrong; what ways to run kernels of one shape have in common goes with
/// all of them. Kernels of every kind convert halves by an instruction in WGSL: where nothing is left with it, all are tried anew without.
///
/// # Errors
/// [`Error::Target`] where nothing is left that could be right.
pub(crate) fn without(plan: &mut Plan, wrong: Vec<Exclusion>) -> Result<()> {
    let halves = plan.target.f16 && plan.target.language == Language::Wgsl;
    match exclude(plan, wrong) {
        Err(error) if halves => {
            let target = &plan.target.name;
            tracing::warn!("{target}: it does without {HALVES} in all kernels, because {error}");
            plan.target.f16 = false;
            plan.excluded = vec![Exclusion {
                variant: HALVES,
                of: "all kernels".into(),
            }];
            anew(plan)
        }
        excluded => excluded,
    }
}

fn exclude(plan: &mut Plan, wrong: Vec<Exclusion>) -> Result<()> {
    for exclusion in wrong {
        if plan.excluded.contains(&exclusion) {
            return Err(Error::Target {
                target: plan.target.name.clone(),
                kernel: exclusion.of,
                reason: format!("goes wrong without {} too: {ADVICE}", exclusion.variant),
            });
        }
        if exclusion.variant == SHRINK_INSIDE {
            plan.target.starts_in_order = false;
        }
        plan.excluded.push(exclusion);
    }
    anew(plan)
}

/// Chooses variants of all kernels.
fn anew(plan: &mut Plan) -> Result<()> {
    for at in 0..plan.kernels.len() {
        let kernel = &plan.kernels[at];
        let max = plan.max_rows(kernel.rows);
        plan.kernels[at].variants = variants(plan, kernel, &plan.target, max)?;
    }
    Ok(())
}

/// Products that one launch makes and another takes lie somewhere between them.
fn scratch(plan: &mut Plan, at: usize) {
    let kernel = &mut plan.kernels[at];
    if let Some(width) = kernel.products_apart(&plan.target) {
        kernel.scratch = Some(PlanValueId(plan.values.len() as u32));
        plan.values.push(PlanValue {
            name: format!("{}.products", kernel.name),
            rows: kernel.rows,
            width,
            element: Element::F32,
            offset: 0,
        });
    }
}

/// Launches beside a rule's: one that makes what a contraction takes first; those of further parts of experts in tiles, and one that makes
/// of their products what is stored.
fn further(plan: &Plan, kernel: &Kernel, implementation: Implementation) -> u32 {
    match (implementation.work(), &kernel.anchor) {
        (Work::Contraction(way), _) => u32::from(plan.makes_first_apart(kernel, way)),
        (Work::Experts(ExpertWay::Tiles | ExpertWay::Matrix), Anchor::Experts { parts, .. }) => {
            parts.len() as u32 - u32::from(kernel.stores_products())
        }
        _ => 0,
    }
}

fn variants(plan: &Plan, kernel: &Kernel, target: &Target, max: u32) -> Result<Vec<Variant>> {
    let mut chosen: Vec<Variant> = Vec::new();
    let mut from = 1;
    let serves = |r: &&Rule| {
        (r.anchor)(plan, &kernel.anchor)
            && (r.needs)(target)
            && !plan.excludes(r.implementation.name(), kernel)
    };
    for rule in RULES.iter().filter(serves) {
        let to = (rule.up_to)(plan, &kernel.anchor).min(max);
        if to < from {
            continue;
        }
        chosen.push(Variant {
            rows: from..=to,
            implementation: rule.implementation,
            dispatches: rule.dispatches + further(plan, kernel, rule.implementation),
        });
        from = to + 1;
    }
    if from <= max {
        let rows = format!("no rule covers {from} to {max} rows");
        let reason = match plan.excluded.is_empty() {
            true => rows,
            false => format!("{rows} but for what goes wrong: {ADVICE}"),
        };
        return Err(Error::Target {
            target: target.name.to_string(),
            kernel: kernel.name.clone(),
            reason,
        });
    }
    Ok(chosen)
}
