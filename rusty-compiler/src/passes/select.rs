//! Kernel choice: an ordered table of rules over plain target facts. For each range of rows the first rule
//! that matches wins, and EXPLAIN shows which.

use crate::plan::{Anchor, Kernel, Plan, Variant};
use crate::{Error, Result};
use rusty_backend::{Family, Target};

/// One way to run one kind of anchor.
struct Rule {
    anchor: fn(&Anchor) -> bool,
    /// Largest number of rows it is good for.
    up_to: u32,
    needs: fn(&Target) -> bool,
    name: &'static str,
    dispatches: u32,
}

const ANY: u32 = u32::MAX;

/// Decode batches up to this many rows go through the matrix-vector kernels: beyond, tiles that reuse each
/// dequantized weight for several rows read less.
const GEMV_ROWS: u32 = 4;

/// First match wins.
const RULES: &[Rule] = &[
    Rule {
        anchor: contract,
        up_to: ANY,
        needs: cpu,
        name: "cpu_contract",
        dispatches: 1,
    },
    Rule {
        anchor: attention,
        up_to: ANY,
        needs: cpu,
        name: "cpu_attention",
        dispatches: 1,
    },
    Rule {
        anchor: experts,
        up_to: ANY,
        needs: cpu,
        name: "cpu_experts",
        dispatches: 1,
    },
    Rule {
        anchor: rows,
        up_to: ANY,
        needs: cpu,
        name: "cpu_rows",
        dispatches: 1,
    },
    Rule {
        anchor: contract,
        up_to: GEMV_ROWS,
        needs: planes,
        name: "gemv_plane",
        dispatches: 1,
    },
    Rule {
        anchor: contract,
        up_to: GEMV_ROWS,
        needs: gpu,
        name: "gemv_shared",
        dispatches: 1,
    },
    Rule {
        anchor: contract,
        up_to: ANY,
        needs: gpu,
        name: "gemm_tiled",
        dispatches: 1,
    },
    Rule {
        anchor: attention,
        up_to: ANY,
        needs: gpu,
        name: "attention_flash",
        dispatches: 1,
    },
    Rule {
        anchor: experts,
        up_to: ANY,
        needs: planes,
        name: "experts_plane",
        dispatches: 1,
    },
    Rule {
        anchor: experts,
        up_to: ANY,
        needs: gpu,
        name: "experts_shared",
        dispatches: 1,
    },
    Rule {
        anchor: rows,
        up_to: ANY,
        needs: planes,
        name: "rows_plane",
        dispatches: 1,
    },
    Rule {
        anchor: rows,
        up_to: ANY,
        needs: gpu,
        name: "rows_shared",
        dispatches: 1,
    },
];

fn contract(anchor: &Anchor) -> bool {
    matches!(anchor, Anchor::Contract { .. })
}

fn attention(anchor: &Anchor) -> bool {
    matches!(anchor, Anchor::Attention { .. })
}

/// Routing and the products that it leads to.
fn experts(anchor: &Anchor) -> bool {
    matches!(anchor, Anchor::Route { .. } | Anchor::Experts { .. })
}

fn rows(anchor: &Anchor) -> bool {
    !contract(anchor) && !attention(anchor) && !experts(anchor)
}

fn cpu(target: &Target) -> bool {
    target.family == Family::Cpu
}

fn gpu(target: &Target) -> bool {
    !cpu(target)
}

fn planes(target: &Target) -> bool {
    gpu(target) && target.plane_ops
}

/// Chooses variants for every kernel.
pub(super) fn run(mut plan: Plan, target: &Target) -> Result<Plan> {
    for at in 0..plan.kernels.len() {
        let max = plan.max_rows(plan.kernels[at].rows);
        plan.kernels[at].variants = variants(&plan.kernels[at], target, max)?;
    }
    Ok(plan)
}

fn variants(kernel: &Kernel, target: &Target, max: u32) -> Result<Vec<Variant>> {
    let mut chosen: Vec<Variant> = Vec::new();
    let mut from = 1;
    for rule in RULES
        .iter()
        .filter(|r| (r.anchor)(&kernel.anchor) && (r.needs)(target))
    {
        if from > max || rule.up_to < from {
            continue;
        }
        let to = rule.up_to.min(max);
        chosen.push(Variant {
            rows: (from, to),
            name: rule.name,
            dispatches: rule.dispatches,
        });
        from = to + 1;
    }
    if from <= max {
        return Err(Error::Target {
            target: target.name.to_string(),
            kernel: kernel.name.clone(),
            reason: format!("no rule covers {from} to {max} rows"),
        });
    }
    Ok(chosen)
}
