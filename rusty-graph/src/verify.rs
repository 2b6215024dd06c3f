//! The verifier: after it, passes and the interpreter may trust a graph's form.
//!
//! Invariants:
//!
//! 1. `symbols[0]` is `T`, `symbols[1]` is `L`; maxima are at least 1, names unique.
//! 2. Node `i` defines value `i`, and nothing else does; operands are defined before they are used.
//! 3. Names of values are unique, not empty, and made of letters, digits and `_ . - /` (the text form
//!    relies on it); so are those of weights and of sites.
//! 4. Every value has the shape that [`crate::shape`] infers from its op and operands.
//! 5. Weights are vectors or matrices of at least one element, their rows whole blocks of their format, and
//!    one node at most reads each.
//! 6. A site has a name of its own and belongs to exactly one matrix of a product, whose widths it has; those of experts or heads
//!    follow each other.
//! 7. A layer of the cache belongs to exactly one attention, and has its heads.
//! 8. Rotary specifications rotate an even number of lanes with finite, positive constants; divisors are
//!    one per pair.
//! 9. There are two outputs: `[L, vocab]` and `[L, width]`, the second being what the logits are made of.

use std::collections::HashSet;

use crate::shape::{L, infer};
use crate::{Dim, Error, Graph, Node, Op, Result, RopeScaling, RopeSpec, SiteId, Symbol};

/// Checks all invariants.
///
/// # Errors
/// [`Error::Invalid`] naming the node, weight, site or symbol and the invariant it breaks.
pub fn verify(graph: &Graph) -> Result<()> {
    symbols(&graph.symbols)?;
    names(graph)?;
    weights(graph)?;
    for (i, spec) in graph.ropes.iter().enumerate() {
        rope(spec).map_err(|reason| invalid(&format!("rope{i}"), reason))?;
    }
    nodes(graph)?;
    owners(graph)?;
    outputs(graph)
}

fn invalid(node: &str, reason: impl Into<String>) -> Error {
    Error::Invalid {
        node: node.into(),
        reason: reason.into(),
    }
}

fn symbols(symbols: &[Symbol]) -> Result<()> {
    for (i, name) in ["T", "L"].iter().enumerate() {
        if symbols.get(i).is_none_or(|s| s.name != *name) {
            return Err(invalid("symbols", format!("symbol {i} is not {name}")));
        }
    }
    if let Some(s) = symbols.iter().find(|s| s.max == 0) {
        return Err(invalid(&s.name, "has a maximum of 0"));
    }
    unique("symbol", symbols.iter().map(|s| s.name.as_str()))
}

fn names(graph: &Graph) -> Result<()> {
    unique("architecture", std::iter::once(graph.arch.as_str()))?;
    unique("value", graph.values.iter().map(|v| v.name.as_str()))?;
    unique("weight", graph.weights.iter().map(|w| w.name.as_str()))?;
    unique("site", graph.sites.iter().map(|s| s.name.as_str()))
}

/// Whether a name can stand in the text form as it is.
fn printable(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
    !name.is_empty() && name.chars().all(allowed)
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !printable(name) {
            let reason = format!("a {what}'s name may hold letters, digits and _ . - / only");
            return Err(invalid(&format!("{name:?}"), reason));
        }
        if !seen.insert(name) {
            return Err(invalid(name, format!("names a second {what}")));
        }
    }
    Ok(())
}

fn weights(graph: &Graph) -> Result<()> {
    for decl in &graph.weights {
        if !matches!(decl.shape.len(), 1 | 2) || decl.shape.contains(&0) {
            let reason = format!("has shape {:?}; needed: a vector or a matrix", decl.shape);
            return Err(invalid(&decl.name, reason));
        }
        let row = decl.shape.last().copied().unwrap_or(0) as usize;
        if !row.is_multiple_of(decl.format.block_len()) {
            let format = decl.format.name();
            let reason = format!("rows of {row} elements are no whole blocks of {format}");
            return Err(invalid(&decl.name, reason));
        }
    }
    Ok(())
}

fn rope(spec: &RopeSpec) -> Result<(), String> {
    if spec.dims == 0 || !spec.dims.is_multiple_of(2) {
        return Err(format!("rotates {} lanes", spec.dims));
    }
    if !(spec.base.is_finite() && spec.base > 1.0) {
        return Err(format!("has base {}", spec.base));
    }
    let (constants, original): (Vec<f64>, u32) = match &spec.scaling {
        RopeScaling::None => (vec![], 1),
        RopeScaling::Linear { factor } => (vec![*factor], 1),
        RopeScaling::Dynamic { factor, original } => {
            if spec.dims == 2 {
                return Err("scales two lanes dynamically".into());
            }
            (vec![*factor], *original)
        }
        RopeScaling::Llama3 {
            factor,
            low_freq,
            high_freq,
            original,
        } => (
            vec![*factor, *low_freq, *high_freq, high_freq - low_freq],
            *original,
        ),
        RopeScaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            attn_factor,
            ..
        } => (
            vec![*factor, *beta_fast, *beta_slow, *attn_factor],
            *original,
        ),
        RopeScaling::Divisors(d) => (divisors(spec, d)?, 1),
        RopeScaling::Long {
            short,
            long,
            original,
            attn_factor,
        } => {
            let mut constants = divisors(spec, short)?;
            constants.extend(divisors(spec, long)?);
            constants.push(*attn_factor);
            (constants, *original)
        }
    };
    if original == 0 || constants.iter().any(|c| !(c.is_finite() && *c > 0.0)) {
        return Err("has constants that are not finite and positive".into());
    }
    Ok(())
}

fn divisors(spec: &RopeSpec, list: &[f32]) -> Result<Vec<f64>, String> {
    if list.len() != spec.dims as usize / 2 {
        let (have, lanes) = (list.len(), spec.dims);
        return Err(format!("has {have} divisors for {lanes} lanes"));
    }
    Ok(list.iter().map(|&d| f64::from(d)).collect())
}

fn nodes(graph: &Graph) -> Result<()> {
    if graph.nodes.len() != graph.values.len() {
        let (nodes, values) = (graph.nodes.len(), graph.values.len());
        return Err(invalid(
            "nodes",
            format!("{nodes} nodes define {values} values"),
        ));
    }
    for (i, (node, value)) in graph.nodes.iter().zip(&graph.values).enumerate() {
        if node.output.index() != i || value.def.index() != i {
            return Err(invalid(&value.name, format!("is not defined by node {i}")));
        }
        if let Some(late) = node.inputs.iter().find(|v| v.index() >= i) {
            return Err(invalid(
                &value.name,
                format!("uses {late} before it is defined"),
            ));
        }
    }
    for (node, value) in graph.nodes.iter().zip(&graph.values) {
        let shape = infer(graph, &node.op, &node.inputs).map_err(|r| invalid(&value.name, r))?;
        if shape != value.shape {
            let reason = format!("has shape {:?}; inferred: {shape:?}", value.shape);
            return Err(invalid(&value.name, reason));
        }
    }
    Ok(())
}

fn owners(graph: &Graph) -> Result<()> {
    let mut weights = vec![0; graph.weights.len()];
    let mut sites = vec![0; graph.sites.len()];
    let mut layers = vec![0; graph.kv.len()];
    for node in &graph.nodes {
        let name = &graph.value(node.output).name;
        match &node.op {
            Op::Weight(w) => weights[w.index()] += 1,
            Op::MatMul { site: Some(site) } => {
                own_sites(graph, node, *site, &mut sites)?;
            }
            Op::Experts {
                sites: Some(first), ..
            }
            | Op::HeadMatMul { sites: Some(first) } => {
                own_sites(graph, node, *first, &mut sites)?;
            }
            Op::Attention(spec) => {
                let Some(kv) = graph.kv.get(spec.layer as usize) else {
                    return Err(invalid(name, format!("layer {} has no cache", spec.layer)));
                };
                layers[spec.layer as usize] += 1;
                let cached = (kv.kv_heads, kv.head_dim, kv.values);
                if cached != (spec.kv_heads, spec.head_dim, spec.values) {
                    return Err(invalid(name, "has other heads than its cache"));
                }
            }
            _ => {}
        }
    }
    if let Some(i) = weights.iter().position(|&n| n > 1) {
        return Err(invalid(
            &graph.weights[i].name,
            "is read by more than one node",
        ));
    }
    let known =
        |(id, name): (usize, &String)| graph.site_named(name).map(SiteId::index) == Some(id);
    let mut names = graph.sites.iter().map(|site| &site.name).enumerate();
    if let Some((_, name)) = names.find(|named| !known(*named)) {
        return Err(invalid(name, "is not found by its name"));
    }
    if let Some(i) = sites.iter().position(|&n| n != 1) {
        let reason = format!("is the site of {} products; needed: 1", sites[i]);
        return Err(invalid(&graph.sites[i].name, reason));
    }
    if let Some(i) = layers.iter().position(|&n| n != 1) {
        let reason = format!("is the cache of {} attentions; needed: 1", layers[i]);
        return Err(invalid(&format!("kv {i}"), reason));
    }
    Ok(())
}

/// Counts the sites of a node's matrices, which are its last operands, and holds them to the matrices' shapes.
fn own_sites(graph: &Graph, node: &Node, first: SiteId, owners: &mut [u32]) -> Result<()> {
    let name = &graph.value(node.output).name;
    let grouped = !matches!(node.op, Op::MatMul { .. });
    let matrices = node
        .inputs
        .iter()
        .filter(|v| graph.as_weight(**v).is_some());
    for (id, matrix) in (first.index()..).zip(matrices) {
        let (Some(site), Some(owners)) = (graph.sites.get(id), owners.get_mut(id)) else {
            return Err(invalid(name, format!("names {id}, which is no site")));
        };
        *owners += 1;
        let (n, k) = match graph.value(*matrix).shape[..] {
            [Dim::Const(n), Dim::Const(k)] => (n, k),
            _ => (0, 0),
        };
        if (site.k, site.n, site.grouped) != (k, n, grouped) {
            let reason = format!(
                "is {k} -> {n}, grouped: {grouped}; its site {} -> {}, grouped: {}",
                site.k, site.n, site.grouped
            );
            return Err(invalid(name, reason));
        }
    }
    Ok(())
}

fn outputs(graph: &Graph) -> Result<()> {
    let (logits, hidden) = (graph.logits, graph.hidden);
    if logits.index().max(hidden.index()) >= graph.values.len() {
        return Err(invalid("outputs", "do not exist"));
    }
    if graph.value(logits).shape != [L, Dim::Const(graph.vocab)] {
        let reason = format!("logits are not [L, {}]", graph.vocab);
        return Err(invalid(&graph.value(logits).name, reason));
    }
    if !matches!(graph.value(hidden).shape[..], [rows, Dim::Const(_)] if rows == L) {
        return Err(invalid(
            &graph.value(hidden).name,
            "hidden rows are not [L, width]",
        ));
    }
    Ok(())
}
