//! Modules that an architecture's files hold instead of the products whose rows they are: the pairs of the products become
//! one pair.
//!
//! Products that share `A`, as they do where such a file was read, share its ranks again. Each other `A` keeps ranks of its
//! own, with zeros in the rows of the other products.

use super::shared_ranks::{factor, format_of_a, format_of_b, widen};
use super::{At, Matrix, Pair};
use crate::base_model::Base;
use rusty_loader::{arch, fused};
use std::collections::BTreeMap;

/// Pairs of the modules that the base's files hold.
pub(super) fn joined(pairs: Vec<Pair>, base: &Base<'_>) -> Vec<Pair> {
    let mut whole: BTreeMap<String, Vec<Pair>> = BTreeMap::new();
    let mut all = vec![];
    for pair in pairs {
        match fused_module(&pair.module, &base.graph.arch) {
            Some(module) => whole.entry(module).or_default().push(pair),
            None => all.push(pair),
        }
    }
    let whole = whole.into_iter();
    all.extend(whole.map(|(module, pairs)| join(module, &pairs, base)));
    all
}

/// The module of files of an architecture that holds a product's rows: `blk.0.attn_qkv` for `blk.0.attn_k`.
fn fused_module(product: &str, arch: &str) -> Option<String> {
    let (block, _) = product.rsplit_once('.')?;
    let mut modules = arch::fused_modules(arch)
        .iter()
        .map(|m| format!("{block}.{m}"));
    modules.find(|module| fused::modules(module).iter().any(|part| part == product))
}

/// One pair for the products of a module; those that have none get rows of zeros.
fn join(module: String, pairs: &[Pair], base: &Base<'_>) -> Pair {
    let (a, firsts) = stacked(pairs);
    let rank = a.rows;
    let biased = pairs.iter().any(|pair| pair.bias.is_some());
    let (mut b, mut bias) = (vec![], vec![]);
    for part in fused::modules(&module) {
        let site = base.graph.site_named(&part);
        let rows = site.map_or(0, |id| base.graph.site(id).n as usize);
        let (first_value, first_row) = (b.len(), bias.len());
        b.resize(first_value + rows * rank, 0.0);
        bias.resize(first_row + rows, 0.0);
        let mut found = pairs.iter().zip(&firsts);
        let Some((pair, first)) = found.find(|(pair, _)| pair.module == part) else {
            continue;
        };
        widen(pair, rank, *first, &mut b[first_value..]);
        let factor = factor(pair, rank);
        let own = bias[first_row..].iter_mut();
        own.zip(pair.bias.iter().flatten())
            .for_each(|(to, v)| *to = v * factor);
    }
    Pair {
        module,
        at: At::Sites,
        b: Matrix {
            rows: b.len() / rank,
            columns: rank,
            values: b,
            format: format_of_b(pairs.iter(), rank),
        },
        a,
        bias: biased.then_some(bias),
    }
}

/// The different `A` of pairs, one above the other, and each pair's first row of it.
fn stacked(pairs: &[Pair]) -> (Matrix, Vec<usize>) {
    let columns = pairs[0].a.columns;
    let (mut values, mut firsts) = (vec![], vec![]);
    for (i, pair) in pairs.iter().enumerate() {
        let same = pairs[..i].iter().position(|p| p.a.values == pair.a.values);
        firsts.push(match same {
            Some(same) => firsts[same],
            None => {
                values.extend(&pair.a.values);
                (values.len() - pair.a.values.len()) / columns
            }
        });
    }
    let a = Matrix {
        rows: values.len() / columns,
        columns,
        values,
        format: format_of_a(pairs.iter()),
    };
    (a, firsts)
}
