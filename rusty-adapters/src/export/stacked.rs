//! Experts' pairs as llama.cpp has them: one pair of a product's matrices for all experts, one above the other.
//!
//! All get as many ranks as the one that has most. Experts that an adapter leaves as they are get zeros.

use super::shared_ranks::{format_of_a, format_of_b, widen};
use super::{At, Matrix, Pair};
use crate::base_model::Base;
use std::collections::BTreeMap;

/// The pairs with those of experts in one for each product; a product of heads, which such files cannot state, is refused by name.
pub(super) fn joined(pairs: Vec<Pair>, base: &Base<'_>) -> Result<Vec<Pair>, String> {
    let mut products: BTreeMap<String, BTreeMap<usize, Pair>> = BTreeMap::new();
    let mut all = vec![];
    for pair in pairs {
        let grouped = match pair.at {
            At::Site(id) => base.graph.site(id).grouped,
            At::Sites | At::Experts(_) | At::Embedding => false,
        };
        let numbered = pair.module.rsplit_once('.');
        let numbered = numbered.and_then(|(product, i)| Some((product, i.parse().ok()?)));
        match numbered.filter(|_| grouped) {
            Some((product, expert)) if product.ends_with("_exps") => {
                let experts = products.entry(product.into()).or_default();
                experts.insert(expert, pair);
            }
            Some(_) => return Err(pair.module),
            None => all.push(pair),
        }
    }
    all.extend(products.into_iter().map(|(product, experts)| {
        let count = base.sites_of(&product).map_or(0, |sites| sites.len());
        join(product, &experts, count)
    }));
    Ok(all)
}

fn join(module: String, experts: &BTreeMap<usize, Pair>, count: usize) -> Pair {
    let ranks = experts.values().map(|pair| pair.a.rows);
    let rank = ranks.max().unwrap_or(0);
    let one = experts.values().next();
    let (k, n) = one.map_or((0, 0), |pair| (pair.a.columns, pair.b.rows));
    let (mut a, mut b) = (vec![0.0; count * rank * k], vec![0.0; count * n * rank]);
    for (expert, pair) in experts {
        a[expert * rank * k..][..pair.a.values.len()].copy_from_slice(&pair.a.values);
        widen(pair, rank, 0, &mut b[expert * n * rank..][..n * rank]);
    }
    let matrix = |rows, columns, values, format| Matrix {
        rows,
        columns,
        values,
        format,
    };
    let of_a = format_of_a(experts.values());
    let of_b = format_of_b(experts.values(), rank);
    Pair {
        module,
        at: At::Experts(count),
        a: matrix(count * rank, k, a, of_a),
        b: matrix(count * n, rank, b, of_b),
        bias: None,
    }
}
