//! Several adapters as one.
//!
//! What a slot does is linear in its adapter: a weighted sum of deltas has stacked ranks, summed biases, and gains whose
//! distances from one are weighted and summed. PEFT's `cat` is that sum. Its `linear` sums factors instead, which
//! gives cross terms and needs equal ranks.

use crate::compact::compact;
use crate::factors::{a_table, a_values, b_table, b_values, plain, shared_format};
use crate::{Error, Result};
use rusty_compiler::{EmbeddingDelta, LowRankRows, SiteDelta, SlotData};
use rusty_graph::{Graph, SiteId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How adapters are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mix {
    /// `W + sum of w_i s_i B_i A_i` (PEFT's `cat`).
    #[default]
    Sum,
    /// PEFT's `linear`: `A = sum of sign(w_i) sqrt(|w_i| s_i) A_i`, `B = sum of sqrt(|w_i| s_i) B_i`.
    Linear,
}

/// Adapters, each with its weight, as one.
///
/// # Errors
/// [`Error::Mix`] where several have gains on both sides of a site, several bring soft prompts, ranks differ in a
/// linear mix, or a weight other than 1 meets something that cannot be weighted.
pub fn mix(adapters: &[(&SlotData, f32)], how: Mix, graph: &Graph) -> Result<SlotData> {
    if let [(only, 1.0)] = adapters {
        return Ok((*only).clone());
    }
    let names = adapters.iter().map(|(a, w)| match *w {
        1.0 => a.name.clone(),
        w => format!("{}={w}", a.name),
    });
    let name = names.collect::<Vec<_>>().join("+");
    let refuse = |reason: String| Error::Mix {
        adapters: name.clone(),
        reason,
    };
    let low_ranks =
        |(a, _): &(&SlotData, f32)| a.embedding.as_ref().map_or(0, |e| e.low_ranks.len());
    if how == Mix::Linear && adapters.iter().map(low_ranks).sum::<usize>() > 0 {
        return Err(refuse("a linear mix is of linear layers alone".into()));
    }
    // One adapter's factors stay as they are, whatever its weight.
    let multiplied = match adapters {
        [_] if how == Mix::Sum => None,
        several => Some(several.iter().map(|(a, _)| plain(a))),
    };
    let multiplied: Vec<Cow<'_, SlotData>> = match multiplied {
        Some(multiplied) => multiplied.collect::<Result<_>>()?,
        None => adapters.iter().map(|(a, _)| Cow::Borrowed(*a)).collect(),
    };
    let mut by_site: BTreeMap<SiteId, Vec<(&SiteDelta, f32)>> = BTreeMap::new();
    for (adapter, (_, weight)) in multiplied.iter().zip(adapters) {
        for (site, delta) in &adapter.sites {
            by_site.entry(*site).or_default().push((delta, *weight));
        }
    }
    let sites = by_site.into_iter().map(|(id, deltas)| {
        let site = graph.site(id);
        let sizes = (site.k as usize, site.n as usize);
        let mixed = match how {
            Mix::Sum => sum(&deltas, sizes),
            Mix::Linear => linear(&deltas, sizes),
        };
        mixed
            .map(|delta| (id, delta))
            .map_err(|reason| refuse(format!("at '{}': {reason}", site.name)))
    });
    let sites = sites.collect::<Result<_>>()?;
    let mixed = SlotData {
        sites,
        embedding: embeddings(adapters).map_err(refuse)?,
        prefix: only_one(adapters, "a prefix", |a| a.prefix.clone()).map_err(refuse)?,
        name,
    };
    // One adapter's tables are shared, whatever its weight.
    Ok(match adapters {
        [_] => mixed,
        _ => compact(mixed),
    })
}

/// What at most one adapter may bring, and only whole.
fn only_one<T>(
    adapters: &[(&SlotData, f32)],
    what: &str,
    get: impl Fn(&SlotData) -> Option<T>,
) -> Result<Option<T>, String> {
    let mut found = None;
    for (adapter, weight) in adapters {
        let Some(one) = get(adapter) else { continue };
        if *weight != 1.0 {
            return Err(format!("{what} has no weight but 1"));
        }
        if found.replace(one).is_some() {
            return Err(format!("only one may bring {what}"));
        }
    }
    Ok(found)
}

fn embeddings(adapters: &[(&SlotData, f32)]) -> Result<Option<Arc<EmbeddingDelta>>, String> {
    let embedding = |a: &SlotData| a.embedding.clone();
    let table = only_one(adapters, "a whole embedding", |a| {
        embedding(a)?.table.clone()
    })?;
    let prompt = only_one(adapters, "a soft prompt", |a| embedding(a)?.prompt.clone())?;
    let low_ranks = adapters.iter().flat_map(|(adapter, weight)| {
        let low_ranks = embedding(adapter).map_or(vec![], |e| e.low_ranks.clone());
        low_ranks.into_iter().map(move |low| LowRankRows {
            scale: low.scale * weight,
            ..low
        })
    });
    let merged = EmbeddingDelta {
        table,
        low_ranks: low_ranks.collect(),
        prompt,
    };
    if merged.low_ranks.iter().any(|low| !low.scale.is_finite()) {
        return Err("times these weights an embedding leaves the range of numbers".into());
    }
    let any = merged.table.is_some() || merged.prompt.is_some() || !merged.low_ranks.is_empty();
    Ok(any.then(|| Arc::new(merged)))
}

fn sum(deltas: &[(&SiteDelta, f32)], (k, n): (usize, usize)) -> Result<SiteDelta, String> {
    if let [(only, 1.0)] = deltas {
        return Ok((*only).clone());
    }
    let gains = |gain: fn(&SiteDelta) -> &Option<Arc<[f32]>>| {
        let with: Vec<_> = deltas.iter().filter(|(d, _)| gain(d).is_some()).collect();
        let width = with.first().and_then(|(d, _)| gain(d).as_ref())?.len();
        let lane = |i: usize| {
            let change =
                |(d, w): &&(&SiteDelta, f32)| gain(d).as_ref().map_or(0.0, |g| w * (g[i] - 1.0));
            1.0 + with.iter().map(change).sum::<f32>()
        };
        Some((0..width).map(lane).collect::<Arc<[f32]>>())
    };
    let (gain_in, gain_out) = (gains(|d| &d.gain_in), gains(|d| &d.gain_out));
    let both = deltas
        .iter()
        .any(|(d, w)| d.gain_in.is_some() && d.gain_out.is_some() && *w != 1.0);
    if gain_in.is_some() && gain_out.is_some() && (deltas.len() > 1 || both) {
        return Err("gains on the input and on the output do not add up".into());
    }
    let biases = deltas
        .iter()
        .filter_map(|(d, w)| Some((d.bias.as_ref()?, *w)));
    let bias = biases.fold(None, |sum: Option<Vec<f32>>, (bias, w)| {
        let mut sum = sum.unwrap_or_else(|| vec![0.0; n]);
        sum.iter_mut()
            .zip(bias.iter())
            .for_each(|(s, b)| *s += w * b);
        Some(sum)
    });
    let stacked = stack(deltas, k, n).ok_or("factors cannot be stacked")?;
    let mixed = SiteDelta {
        gain_in,
        gain_out,
        bias: bias.map(Arc::from),
        ..stacked
    };
    match is_finite(&mixed) {
        true => Ok(mixed),
        false => Err("times these weights it leaves the range of numbers".into()),
    }
}

/// Whether all vectors of a delta are finite.
fn is_finite(delta: &SiteDelta) -> bool {
    let vectors = [&delta.gain_in, &delta.gain_out, &delta.bias];
    let mut vectors = vectors.into_iter().flatten().chain([&delta.scale]);
    vectors.all(|vector| vector.iter().all(|v| v.is_finite()))
}

/// Factors side by side.
fn stack(deltas: &[(&SiteDelta, f32)], k: usize, n: usize) -> Option<SiteDelta> {
    let ranked: Vec<_> = deltas.iter().filter(|(d, _)| d.rank > 0).collect();
    let scale = ranked
        .iter()
        .flat_map(|(d, w)| d.scale.iter().map(move |s| s * w));
    let scale: Arc<[f32]> = scale.collect();
    let rank = scale.len();
    match ranked[..] {
        [] => return Some(SiteDelta::default()),
        [(only, _)] => {
            return Some(SiteDelta {
                rank: only.rank,
                a: only.a.clone(),
                b: only.b.clone(),
                scale,
                kron: only.kron.clone(),
                gain_low: only.gain_low.clone(),
                ..SiteDelta::default()
            });
        }
        _ => {}
    }
    let a: Vec<f32> = ranked.iter().flat_map(|(d, _)| a_values(d, k)).collect();
    let b: Vec<(Vec<f32>, usize)> = ranked
        .iter()
        .map(|(d, _)| (b_values(d, n), d.rank as usize))
        .collect();
    let rows: Vec<f32> = (0..n)
        .flat_map(|c| {
            b.iter()
                .flat_map(move |(b, rank)| &b[c * rank..(c + 1) * rank])
        })
        .copied()
        .collect();
    let a_format = shared_format(ranked.iter().filter_map(|(d, _)| d.a.as_ref()));
    let b_format = shared_format(ranked.iter().filter_map(|(d, _)| d.b.as_ref()));
    Some(SiteDelta {
        rank: rank as u32,
        a: Some(a_table(a_format, rank, k, &a)?),
        b: Some(b_table(b_format, n, rank, |c, r| rows[c * rank + r])?),
        scale,
        ..SiteDelta::default()
    })
}

fn linear(deltas: &[(&SiteDelta, f32)], (k, n): (usize, usize)) -> Result<SiteDelta, String> {
    let (first, _) = deltas[0];
    if deltas.iter().any(|(d, _)| d.rank > 0 && d.a.is_none()) {
        return Err("a linear mix needs the factors, which were multiplied out because their product is smaller".into());
    }
    let plain = |d: &SiteDelta| d.gain_in.is_none() && d.gain_out.is_none() && d.bias.is_none();
    if deltas
        .iter()
        .any(|(d, _)| !plain(d) || d.rank != first.rank)
    {
        return Err("a linear mix needs low ranks alone, all of one rank".into());
    }
    let rank = first.rank as usize;
    let (mut a, mut b) = (vec![0.0; rank * k], vec![0.0; n * rank]);
    for (delta, weight) in deltas {
        let (own_a, own_b) = (a_values(delta, k), b_values(delta, n));
        for r in 0..rank {
            // A negative scale would make the root imaginary; it changes sides as a negative weight does.
            let product = weight * delta.scale[r];
            let root = product.abs().sqrt();
            let signed = root.copysign(product);
            for (a, own) in a[r * k..(r + 1) * k].iter_mut().zip(&own_a[r * k..]) {
                *a += signed * own;
            }
            for c in 0..n {
                b[c * rank + r] += root * own_b[c * rank + r];
            }
        }
    }
    let a_format = shared_format(deltas.iter().filter_map(|(d, _)| d.a.as_ref()));
    let b_format = shared_format(deltas.iter().filter_map(|(d, _)| d.b.as_ref()));
    let tables = || {
        Some(SiteDelta {
            rank: rank as u32,
            a: Some(a_table(a_format, rank, k, &a)?),
            b: Some(b_table(b_format, n, rank, |c, r| b[c * rank + r])?),
            scale: vec![1.0; rank].into(),
            ..SiteDelta::default()
        })
    };
    tables().ok_or_else(|| "factors times these weights leave the range of numbers".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factors::change;
    use rusty_compiler::DeltaTable;
    use rusty_loader::Format;

    const K: usize = 8;
    const N: usize = 40;

    /// Numbers between -1 and 1, others for each seed.
    fn numbers(seed: usize, count: usize) -> Vec<f32> {
        let number = |i| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0;
        (0..count).map(number).collect()
    }

    fn low_rank(seed: usize, rank: usize) -> SiteDelta {
        let b = numbers(seed + 1, N * rank);
        SiteDelta {
            rank: rank as u32,
            a: DeltaTable::ranks(Format::F32, rank, K, &numbers(seed, rank * K)),
            b: DeltaTable::panels(Format::F32, N, rank, |c, r| b[c * rank + r]),
            scale: numbers(seed + 2, rank).into(),
            ..SiteDelta::default()
        }
    }

    /// A low rank that a norm of rows was taken into, as DoRA does.
    fn scaled_rows(seed: usize) -> SiteDelta {
        SiteDelta {
            gain_out: Some(numbers(seed + 3, N).into()),
            ..low_rank(seed, 2)
        }
    }

    fn scaled_inputs(seed: usize) -> SiteDelta {
        SiteDelta {
            gain_in: Some(numbers(seed, K).into()),
            bias: Some(numbers(seed + 1, N).into()),
            ..SiteDelta::default()
        }
    }

    fn assert_close(what: &str, have: &[f32], want: &[f32]) {
        assert_eq!(have.len(), want.len());
        let apart = have.iter().zip(want).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 1e-5, "{what}: {apart}");
    }

    /// A sum changes weights and biases by what its parts change, each times its weight, whatever kinds they are of.
    #[test]
    fn sums_are_linear_in_every_kind() {
        let weight = numbers(50, N * K);
        let saved_bias = SiteDelta {
            bias: Some(numbers(9, N).into()),
            ..low_rank(8, 3)
        };
        let mixes: [&[(SiteDelta, f32)]; 6] = [
            &[(low_rank(1, 2), 0.5), (low_rank(4, 3), -2.0)],
            &[(scaled_rows(1), 0.25)],
            &[(scaled_rows(1), 0.5), (low_rank(5, 4), 0.75)],
            &[(scaled_rows(1), 0.5), (scaled_rows(6), 1.5)],
            &[(scaled_inputs(2), -0.5), (scaled_inputs(7), 2.0)],
            &[(scaled_inputs(2), 0.5), (saved_bias, 0.3)],
        ];
        for (i, mix) in mixes.iter().enumerate() {
            let parts: Vec<(&SiteDelta, f32)> = mix.iter().map(|(d, w)| (d, *w)).collect();
            let summed = sum(&parts, (K, N)).expect("a sum");
            let (mut want, mut bias) = (vec![0.0; N * K], vec![0.0; N]);
            for (delta, w) in &parts {
                let add = |sum: &mut [f32], values: &[f32]| {
                    sum.iter_mut().zip(values).for_each(|(s, v)| *s += w * v);
                };
                add(&mut want, &change(delta, &weight, K));
                add(&mut bias, delta.bias.as_deref().unwrap_or(&[]));
            }
            let what = format!("mix {i}");
            assert_close(&what, &change(&summed, &weight, K), &want);
            let have = summed.bias.as_deref().map_or(vec![0.0; N], <[f32]>::to_vec);
            assert_close(&what, &have, &bias);
        }
    }

    #[test]
    fn what_does_not_add_up_is_refused() {
        let (rows, inputs) = (scaled_rows(1), scaled_inputs(2));
        let both = sum(&[(&rows, 1.0), (&inputs, 1.0)], (K, N));
        assert!(both.is_err_and(|e| e.contains("do not add up")));
        let product = SiteDelta {
            rank: K as u32,
            a: None,
            scale: vec![1.0; K].into(),
            ..low_rank(3, K)
        };
        let whole = linear(&[(&product, 1.0), (&product, 0.5)], (K, N));
        assert!(whole.is_err_and(|e| e.contains("multiplied out")));
        let ranks = linear(&[(&low_rank(1, 2), 1.0), (&low_rank(1, 3), 1.0)], (K, N));
        assert!(ranks.is_err_and(|e| e.contains("one rank")));
    }

    /// Halves hold no more than 65504; numbers beyond that are kept, those beyond all numbers refused.
    #[test]
    fn large_weights_widen_tables_or_are_refused() {
        let halves = |seed| {
            let wide = low_rank(seed, 2);
            let table = wide.a.as_ref().expect("a table").values();
            SiteDelta {
                a: DeltaTable::ranks(Format::F16, 2, K, &table),
                scale: vec![16.0; 2].into(),
                ..wide
            }
        };
        let (one, other) = (halves(1), halves(4));
        let mixed = linear(&[(&one, 1e10), (&other, 1.0)], (K, N)).expect("a mix");
        let a = mixed.a.expect("a table");
        assert_eq!(a.format(), Format::F32);
        assert!(a.values().iter().any(|v| *v > 65504.0));
        let too_much = [(&one, f32::MAX), (&other, 1.0)];
        for mix in [sum, linear] {
            let error = mix(&too_much, (K, N)).expect_err("beyond numbers");
            assert!(error.contains("range of numbers"), "{error}");
        }
    }
}
