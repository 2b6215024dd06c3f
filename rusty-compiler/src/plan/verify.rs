//! The invariants of a plan. They hold after every pass; back ends rely on them and need not check.
//!
//! 1. Every activation is stored by exactly one tail, before any kernel reads it, or is one kernel's scratch; a
//!    kernel reads none of its own stores but what it makes first.
//! 2. Registers are defined before use; operand, part and result numbers are in range and of the right kind.
//! 3. Widths agree: a tail's lanes equal the results, loads and vectors it reads and the value it stores; a
//!    prologue's lanes equal its contraction's `k`.
//! 4. Behind contractions, attention and experts bodies are elementwise; a prologue has at most one reduction, over
//!    the whole row, a norm, and no rotation. A softmax is in tails only, among instructions over groups of its own size.
//! 5. A layer's keys and values are stored before its attention.
//! 6. What attention makes first are its queries and its layer's keys and values, each head from its own lanes; what a contraction
//!    makes first is one activation, which its prologue reads and its tails do not, with one norm; both on targets with planes.
//! 7. Products with experts have scratch, as wide as they are, if a variant, or a step with adapters, has a launch that makes of them what
//!    is stored; no other kernel has.
//! 8. Once variants are chosen they cover 1..=max rows in order, without gaps.

mod bodies;

use super::{Anchor, Body, ExpertPart, Inst, Kernel, Operand, Plan, PlanValueId, Sink};
use rusty_graph::{AttentionSpec, AttentionValues, KvLayer, Site, WeightId};
use std::collections::HashSet;

/// An invariant that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the kernel that breaks it.
    pub kernel: String,
    /// How it does.
    pub reason: String,
}

/// Checks a plan.
///
/// # Errors
/// The first kernel that breaks an invariant of plans, and how.
pub fn verify(plan: &Plan) -> Result<(), Violation> {
    let mut state = State {
        plan,
        stored: vec![false; plan.values.len()],
        keys: HashSet::new(),
        vals: HashSet::new(),
    };
    for kernel in &plan.kernels {
        state.kernel(kernel).map_err(|reason| Violation {
            kernel: kernel.name.clone(),
            reason,
        })?;
    }
    for (name, value) in [
        ("logits", plan.logits),
        ("hidden", plan.hidden),
        ("argmax", plan.argmax),
    ] {
        if !state.stored[value.index()] {
            return Err(Violation {
                kernel: name.into(),
                reason: "is never stored".into(),
            });
        }
    }
    Ok(())
}

/// What a body is to its kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Prologue,
    First,
    Tail,
}

struct State<'a> {
    plan: &'a Plan,
    stored: Vec<bool>,
    /// Layers whose keys are stored, and whose values are.
    keys: HashSet<u32>,
    vals: HashSet<u32>,
}

impl State<'_> {
    fn kernel(&mut self, kernel: &Kernel) -> Result<(), String> {
        self.first(kernel)?;
        for operand in &kernel.operands {
            if let Operand::Value(v) = operand
                && !self.stored.get(v.index()).copied().unwrap_or(false)
            {
                return Err(format!("reads value {} before it is stored", v.0));
            }
        }
        self.anchor(kernel)?;
        if let Anchor::Contract { k, .. } = kernel.anchor {
            self.body(kernel, &kernel.prologue, k, Role::Prologue)?;
        } else if !kernel.prologue.insts.is_empty() {
            return Err("only a contraction has a prologue".into());
        }
        if kernel.tails.is_empty() {
            return Err("stores nothing".into());
        }
        for tail in &kernel.tails {
            if !matches!(kernel.anchor, Anchor::ArgMax { .. } | Anchor::Route { .. }) {
                self.body(kernel, &tail.body, tail.width, Role::Tail)?;
            }
            self.sink(kernel, tail.width, tail.sink)?;
        }
        self.scratch(kernel)?;
        self.variants(kernel)
    }

    fn anchor(&self, kernel: &Kernel) -> Result<(), String> {
        let value = |x: u16| match kernel.operands.get(x as usize) {
            Some(Operand::Value(v)) => Ok(*v),
            _ => Err(format!("anchor operand {x} is not an activation")),
        };
        match &kernel.anchor {
            Anchor::Map | Anchor::Gather { .. } => Ok(()),
            Anchor::SelectRows { x } | Anchor::ArgMax { x } => value(*x).map(|_| ()),
            Anchor::Contract { k, parts } => parts.iter().try_for_each(|part| {
                let shape = &self.plan.weights[part.weight.index()].shape;
                let matches = shape[..] == [part.n, *k];
                matches
                    .then_some(())
                    .ok_or(format!("part [{}, {k}] over weight {shape:?}", part.n))
            }),
            Anchor::Route { x, bias, spec } => {
                if let Some(bias) = bias {
                    self.operand(kernel, &Inst::Lane(*bias), *bias, spec.experts)?;
                }
                let fits = self.plan.value(value(*x)?).width == spec.experts;
                let stored = kernel.tails.iter().all(|t| t.width == 2 * spec.used);
                (fits && stored)
                    .then_some(())
                    .ok_or("routes over another number of experts".into())
            }
            Anchor::Experts {
                x,
                routes,
                k,
                n,
                used,
                combine,
                parts,
            } => {
                let each = *combine || routes.is_none();
                let inputs = if each { used * k } else { *k };
                let experts = ExpertPart::experts(parts);
                let routed = match routes {
                    Some(routes) => self.plan.value(value(*routes)?).width == 2 * used,
                    None => experts == *used as usize && !combine,
                };
                let width = self.plan.value(value(*x)?).width;
                let alike = parts.iter().all(|part| {
                    part.weights.len() == experts && self.is_of_experts(part, [*n, *k])
                });
                let summed = !combine || parts.len() == 1;
                (width == inputs && routed && alike && summed)
                    .then_some(())
                    .ok_or(format!("experts [{n}, {k}] over inputs of {width}"))
            }
            Anchor::Attention { q, spec } => {
                if self.plan.value(value(*q)?).width != spec.heads * spec.head_dim {
                    return Err("query width is not heads * head_dim".into());
                }
                let own = spec.values == AttentionValues::Own;
                let written =
                    self.keys.contains(&spec.layer) && (!own || self.vals.contains(&spec.layer));
                written
                    .then_some(())
                    .ok_or("attends before keys and values are stored".into())
            }
        }
    }

    /// Whether a part's matrices, and the sites of those, are of this shape.
    fn is_of_experts(&self, part: &ExpertPart, shape: [u32; 2]) -> bool {
        let sites = part.sites.map_or(Some(&[][..]), |first| {
            let first = first.index();
            self.plan.sites.get(first..first + part.weights.len())
        });
        let fits = |s: &Site| ([s.n, s.k], s.grouped) == (shape, true);
        let has = |w: &WeightId| self.plan.weights[w.index()].shape[..] == shape;
        sites.is_some_and(|sites| sites.iter().all(fits)) && part.weights.iter().all(has)
    }

    /// What is made first.
    fn first(&mut self, kernel: &Kernel) -> Result<(), String> {
        if kernel.first.is_empty() {
            return Ok(());
        }
        if !self.plan.target.plane_ops {
            return Err("makes something first where there are no planes".into());
        }
        match kernel.anchor {
            Anchor::Attention { q, spec } => self.heads(kernel, q, &spec),
            Anchor::Contract { k, .. } => self.residual(kernel, k),
            _ => Err("makes something first, and is neither attention nor contraction".into()),
        }
    }

    /// What a contraction of `k` lanes makes first.
    fn residual(&mut self, kernel: &Kernel, k: u32) -> Result<(), String> {
        let [tail] = &kernel.first[..] else {
            return Err("makes several values first".into());
        };
        let operand = match tail.sink {
            Sink::Value(v) => kernel.operands.iter().position(|o| *o == Operand::Value(v)),
            Sink::Key { .. } | Sink::Val { .. } => None,
        };
        let reads = |body: &Body| operand.is_some_and(|number| body.reads(number as u16));
        if !reads(&kernel.prologue) || reads(&tail.body) || !tail.body.norms_once(k) {
            return Err("makes first what its prologue does not take".into());
        }
        // Other cubes may not have stored it yet.
        if kernel.tails.iter().any(|t| reads(&t.body)) {
            return Err("its tails read what it makes first".into());
        }
        self.body(kernel, &tail.body, tail.width, Role::First)?;
        self.sink(kernel, tail.width, tail.sink)
    }

    /// What attention makes first.
    fn heads(&mut self, kernel: &Kernel, q: u16, spec: &AttentionSpec) -> Result<(), String> {
        for tail in &kernel.first {
            let (lanes, fits) = match tail.sink {
                Sink::Value(v) => {
                    let queries = kernel.operands.get(q as usize) == Some(&Operand::Value(v));
                    (spec.head_dim, queries)
                }
                Sink::Key { layer } => (spec.head_dim, layer == spec.layer),
                Sink::Val { layer } => (spec.value_dim(), layer == spec.layer),
            };
            if !fits
                || !tail.body.stays_in_groups(lanes)
                || tail.body.insts.contains(&Inst::Load(q))
            {
                return Err("makes what is not of its heads".into());
            }
            self.body(kernel, &tail.body, tail.width, Role::First)?;
            self.sink(kernel, tail.width, tail.sink)?;
        }
        Ok(())
    }

    fn result(&self, kernel: &Kernel, i: u16, width: u32) -> Result<(), String> {
        let have = match &kernel.anchor {
            Anchor::Contract { parts, .. } => parts.get(i as usize).map(|p| p.n),
            Anchor::Gather { width, .. } if i == 0 => Some(*width),
            Anchor::SelectRows { x } if i == 0 => self.operand_width(kernel, *x),
            Anchor::Attention { spec, .. } if i == 0 => Some(spec.heads * spec.value_dim()),
            Anchor::Experts {
                n,
                used,
                combine,
                parts,
                ..
            } if usize::from(i) < parts.len() => Some(if *combine { *n } else { n * used }),
            _ => None,
        };
        (have == Some(width))
            .then_some(())
            .ok_or(format!("result {i} is {have:?} lanes, the tail {width}"))
    }

    fn operand_width(&self, kernel: &Kernel, operand: u16) -> Option<u32> {
        match kernel.operands.get(operand as usize)? {
            Operand::Value(v) => Some(self.plan.value(*v).width),
            Operand::Vector(w) => self.plan.weights[w.index()].shape.last().copied(),
            Operand::Rope(_) => None,
        }
    }

    fn operand(
        &self,
        kernel: &Kernel,
        inst: &Inst,
        operand: u16,
        width: u32,
    ) -> Result<(), String> {
        let kind = matches!(
            (inst, kernel.operands.get(operand as usize)),
            (Inst::Load(_) | Inst::Chosen(_), Some(Operand::Value(_)))
                | (Inst::Lane(_), Some(Operand::Vector(_)))
        );
        if !kind {
            return Err(format!("{inst:?} names an operand of another kind"));
        }
        let have = self.operand_width(kernel, operand);
        (have == Some(width))
            .then_some(())
            .ok_or(format!("{inst:?} has {have:?} lanes, the body {width}"))
    }

    fn sink(&mut self, kernel: &Kernel, width: u32, sink: Sink) -> Result<(), String> {
        let kv = |layer: u32, lanes: fn(&KvLayer) -> u32| {
            let stored = self.plan.kv.get(layer as usize).map(lanes);
            (stored == Some(width))
                .then_some(())
                .ok_or(format!("stores {width} lanes to the cache of {layer}"))
        };
        match sink {
            Sink::Key { layer } => {
                kv(layer, KvLayer::key_lanes)?;
                self.keys.insert(layer);
            }
            Sink::Val { layer } => {
                kv(layer, KvLayer::value_lanes)?;
                self.vals.insert(layer);
            }
            Sink::Value(value) => self.store(kernel, width, value)?,
        }
        Ok(())
    }

    /// Whoever has several launches hands products of experts on among them.
    fn scratch(&mut self, kernel: &Kernel) -> Result<(), String> {
        match (kernel.products_apart(&self.plan.target), kernel.scratch) {
            (None, None) => Ok(()),
            (Some(width), Some(id)) => self.store(kernel, width, id),
            _ => Err(format!("has scratch {:?}", kernel.scratch)),
        }
    }

    fn store(&mut self, kernel: &Kernel, width: u32, id: PlanValueId) -> Result<(), String> {
        let values = &self.plan.values;
        let value = values.get(id.index()).ok_or("stores to no value")?;
        if value.width != width || value.rows != kernel.rows {
            return Err(format!(
                "stores {width} lanes to '{}' of {}",
                value.name, value.width
            ));
        }
        let slot = &mut self.stored[id.index()];
        (!std::mem::replace(slot, true))
            .then_some(())
            .ok_or(format!("value {} is stored twice", id.0))
    }

    fn variants(&self, kernel: &Kernel) -> Result<(), String> {
        let mut next = 1;
        for variant in &kernel.variants {
            let (first, last) = (*variant.rows.start(), *variant.rows.end());
            if first != next || last < next {
                return Err(format!(
                    "variant {} covers {first} to {last}, expected from {next}",
                    variant.implementation.name()
                ));
            }
            next = last + 1;
        }
        let covered = kernel.variants.is_empty() || next > self.plan.max_rows(kernel.rows);
        covered
            .then_some(())
            .ok_or(format!("variants end at {} rows", next - 1))
    }
}
