//! The plan as text, for people and for snapshots: one line per kernel, its bodies below.

use super::{Anchor, Body, ExpertPart, Inst, Kernel, Operand, Plan, Sink};
use rusty_graph::{AttentionSpec, AttentionValues, Dim, RouteSpec, WeightId};
use std::fmt::{Debug, Display, Formatter, Result, Write};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "plan {} for {}", self.arch, self.target.name)?;
        for kernel in &self.kernels {
            write_kernel(f, self, kernel)?;
        }
        writeln!(
            f,
            "{} kernels ({} before fusion), arena {} bytes",
            self.kernels.len(),
            self.unfused_kernels,
            self.arena_bytes
        )
    }
}

fn write_kernel(f: &mut Formatter<'_>, plan: &Plan, kernel: &Kernel) -> Result {
    let rows = match kernel.rows {
        Dim::Const(n) => n.to_string(),
        Dim::Sym(s) => plan.symbols[s.index()].name.clone(),
    };
    writeln!(f, "{}: {} [{rows}]", kernel.name, anchor(plan, kernel))?;
    if !kernel.prologue.insts.is_empty()
        && !matches!(kernel.prologue.as_identity(), Some(Inst::Load(_)))
    {
        writeln!(f, "    from {}", body(plan, kernel, &kernel.prologue))?;
    } else if let Some(source @ Inst::Load(_)) = kernel.prologue.as_identity() {
        writeln!(f, "    from {}", leaf(plan, kernel, source))?;
    }
    for (tail, made) in
        (kernel.first.iter().map(|t| (t, "first "))).chain(kernel.tails.iter().map(|t| (t, "")))
    {
        let sink = match tail.sink {
            Sink::Value(v) => format!("{} @{:#x}", plan.value(v).name, plan.value(v).offset),
            Sink::Key { layer } => format!("keys[{layer}]"),
            Sink::Val { layer } => format!("values[{layer}]"),
        };
        let program = if tail.body.insts.is_empty() {
            "index".into()
        } else {
            body(plan, kernel, &tail.body)
        };
        writeln!(f, "    {made}{sink} [{}] = {program}", tail.width)?;
    }
    for v in &kernel.variants {
        writeln!(
            f,
            "    rows {}..={}: {} x{}",
            v.rows.start(),
            v.rows.end(),
            v.implementation.name(),
            v.dispatches
        )?;
    }
    Ok(())
}

fn anchor(plan: &Plan, kernel: &Kernel) -> String {
    let operand = |o: u16| leaf(plan, kernel, Inst::Load(o));
    match &kernel.anchor {
        Anchor::Map => "map".into(),
        Anchor::Gather { table, .. } => format!("gather {}", weight(plan, *table)),
        Anchor::SelectRows { x } => format!("select {}", operand(*x)),
        Anchor::ArgMax { x } => format!("argmax {}", operand(*x)),
        Anchor::Route { x, bias, spec } => {
            let bias = bias.map_or_else(String::new, |b| format!(" by {}", operand(b)));
            format!("route {} {}{bias}", operand(*x), route(spec))
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
            let summed = if *combine { " summed" } else { "" };
            let routes = routes.map_or_else(|| "head".into(), operand);
            let all = ExpertPart::experts(parts);
            let mut text = format!("experts {} by {routes} {used} of {all} {k} ->", operand(*x));
            for part in parts {
                let site = if part.sites.is_some() { "*" } else { "" };
                let first = part.weights.first();
                let first = first.map_or_else(String::new, |w| weight(plan, *w));
                let _ = write!(text, " {n}{site}({first}..){summed}");
            }
            text
        }
        Anchor::Attention { q, spec } => attention(spec, &operand(*q)),
        Anchor::Contract { k, parts } => {
            let mut text = format!("contract {k} ->");
            for part in parts {
                let site = if part.site.is_some() { "*" } else { "" };
                let _ = write!(text, " {}{site}({})", part.n, weight(plan, part.weight));
            }
            text
        }
    }
}

fn weight(plan: &Plan, id: WeightId) -> String {
    let weight = &plan.weights[id.index()];
    format!("{}:{}", weight.name, weight.format.name())
}

fn route(spec: &RouteSpec) -> String {
    let mut text = format!("{} of {}", spec.used, spec.experts);
    if let Some(groups) = spec.groups {
        let _ = write!(text, " in {} of {} groups", groups.used, groups.count);
    }
    text
}

fn attention(spec: &AttentionSpec, queries: &str) -> String {
    let mut text = format!(
        "attention layer {} q {queries} heads {}/{}x{}",
        spec.layer, spec.heads, spec.kv_heads, spec.head_dim
    );
    if let AttentionValues::OfKeys(lanes) = spec.values {
        let _ = write!(text, " values {lanes} of keys");
    }
    if let Some(window) = spec.window {
        let _ = write!(text, " window {window}");
    }
    text
}

fn leaf(plan: &Plan, kernel: &Kernel, inst: Inst) -> String {
    let operand = |o: u16| match kernel.operands.get(o as usize) {
        Some(Operand::Value(v)) => plan.value(*v).name.clone(),
        Some(Operand::Vector(w)) => plan.weights[w.index()].name.clone(),
        Some(Operand::Rope(r)) => r.to_string(),
        None => format!("operand {o}?"),
    };
    match inst {
        Inst::Result(i) => format!("r{i}"),
        Inst::Load(o) | Inst::Lane(o) => operand(o),
        Inst::Chosen(o) => format!("chosen {}", operand(o)),
        other => format!("{other:?}"),
    }
}

/// A body as one nested expression; registers that are read twice are printed twice.
fn body(plan: &Plan, kernel: &Kernel, body: &Body) -> String {
    let mut texts: Vec<String> = Vec::new();
    for inst in &body.insts {
        let text = expression(plan, kernel, *inst, &texts);
        texts.push(text);
    }
    texts.pop().unwrap_or_default()
}

/// An instruction over the expressions before it.
fn expression(plan: &Plan, kernel: &Kernel, inst: Inst, texts: &[String]) -> String {
    let at = |r: u16| match texts.get(r as usize) {
        Some(text) => text.clone(),
        None => format!("%{r}?"),
    };
    let operand = |o: u16| leaf(plan, kernel, Inst::Load(o));
    match inst {
        Inst::Result(_) | Inst::Load(_) | Inst::Lane(_) | Inst::Chosen(_) => {
            leaf(plan, kernel, inst)
        }
        Inst::Part {
            from,
            group,
            first,
            count,
        } => {
            let end = first + count;
            format!("{}[{first}..{end} of {group}]", operand(from))
        }
        Inst::Join { from, lanes } => {
            let [left, right] = from.map(operand);
            format!("join({left} {}, {right} {})", lanes[0], lanes[1])
        }
        Inst::Unary(op, a) => format!("{}({})", lower(op), at(a)),
        Inst::Binary(op, a, b) => format!("{}({}, {})", lower(op), at(a), at(b)),
        Inst::Scale(c, a) => format!("{:?} * {}", c, at(a)),
        Inst::RmsNorm {
            x,
            weight,
            group,
            eps,
        } => {
            let (x, weight) = (at(x), operand(weight));
            format!("rmsnorm({x}, {weight}, group {group}, eps {eps:?})")
        }
        Inst::Softmax { x, group } => format!("softmax({}, group {group})", at(x)),
        Inst::Rope {
            x,
            table,
            head_dim,
            dims,
            layout,
        } => {
            let (x, table, layout) = (at(x), operand(table), lower(layout));
            format!("rope({x}, {table}, {dims}/{head_dim} {layout})")
        }
    }
}

/// A name in small letters.
fn lower(name: impl Debug) -> String {
    format!("{name:?}").to_lowercase()
}
