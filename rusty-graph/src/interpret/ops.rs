//! What each op computes, in the plainest way: sums in double precision, nothing shared between rows.

use super::{Matrix, SiteLora};
use crate::{AttentionSpec, BinaryOp, RopeLayout, RouteSpec, UnaryOp};

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

/// The table's rows of some tokens.
pub fn gather(table: &Matrix, tokens: &[u32]) -> Matrix {
    let mut out = Matrix::zeros(tokens.len(), table.width);
    for (row, token) in tokens.iter().enumerate() {
        out.row_mut(row).copy_from_slice(table.row(*token as usize));
    }
    out
}

/// `x w^T`.
pub fn product(x: &Matrix, w: &Matrix) -> Matrix {
    let mut out = Matrix::zeros(x.rows, w.rows);
    for row in 0..x.rows {
        for n in 0..w.rows {
            out.row_mut(row)[n] = dot(x.row(row), w.row(n)) as f32;
        }
    }
    out
}

/// Adds `scale * B (A x)` to the products of the rows `x` at a site.
pub fn add_delta(out: &mut Matrix, x: &Matrix, delta: &SiteLora) {
    let rank = delta.a.len() / x.width;
    for row in 0..x.rows {
        let low: Vec<f64> = delta
            .a
            .chunks(x.width)
            .map(|a| dot(a, x.row(row)))
            .collect();
        for (y, b) in out.row_mut(row).iter_mut().zip(delta.b.chunks(rank.max(1))) {
            let sum: f64 = b.iter().zip(&low).map(|(b, u)| f64::from(*b) * u).sum();
            *y += (f64::from(delta.scale) * sum) as f32;
        }
    }
}

/// A function of one number.
pub fn unary(op: UnaryOp, x: f32) -> f32 {
    let x = f64::from(x);
    let y = match op {
        UnaryOp::Silu => x / (1.0 + (-x).exp()),
        UnaryOp::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        UnaryOp::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Relu => x.max(0.0),
        UnaryOp::Neg => -x,
    };
    y as f32
}

/// The error function by its Taylor series near 0 and its continued fraction beyond (Abramowitz and Stegun,
/// 7.1.6 and 7.1.14), to double precision.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a > 6.0 {
        return x.signum();
    }
    if a < 3.0 {
        let (mut term, mut sum) = (a, a);
        for n in 1..200 {
            term *= 2.0 * a * a / (2.0 * f64::from(n) + 1.0);
            sum += term;
        }
        return x.signum() * 2.0 / std::f64::consts::PI.sqrt() * (-a * a).exp() * sum;
    }
    let fraction = (1..=120).rev().fold(a, |f, n| a + f64::from(n) / 2.0 / f);
    x.signum() * (1.0 - (-a * a).exp() / (fraction * std::f64::consts::PI.sqrt()))
}

/// Lane by lane; one row (a weight vector) or one lane per row is broadcast.
pub fn binary(op: BinaryOp, a: &Matrix, b: &Matrix) -> Matrix {
    let (rows, width) = (a.rows.max(b.rows), a.width.max(b.width));
    let at = |m: &Matrix, row: usize, lane: usize| {
        m.row(if m.rows == 1 { 0 } else { row })[if m.width == 1 { 0 } else { lane }]
    };
    let mut out = Matrix::zeros(rows, width);
    for row in 0..rows {
        for lane in 0..width {
            let (a, b) = (at(a, row, lane), at(b, row, lane));
            out.row_mut(row)[lane] = match op {
                BinaryOp::Add => a + b,
                BinaryOp::Sub => a - b,
                BinaryOp::Mul => a * b,
                BinaryOp::Div => a / b,
            };
        }
    }
    out
}

/// `x / sqrt(mean(x^2) + eps) * weight`, the mean over each `group` lanes.
pub fn rms_norm(x: &Matrix, weight: &[f32], eps: f32, group: usize) -> Matrix {
    let mut out = x.clone();
    for lanes in out.data.chunks_mut(group) {
        let factor = 1.0 / (dot(lanes, lanes) / group as f64 + f64::from(eps)).sqrt();
        for (lane, w) in lanes.iter_mut().zip(weight) {
            *lane = (f64::from(*lane) * factor * f64::from(*w)) as f32;
        }
    }
    out
}

/// Shares of exponentials among each `group` lanes.
pub fn softmax(x: &Matrix, group: usize) -> Matrix {
    let mut out = x.clone();
    for lanes in out.data.chunks_mut(group) {
        let most = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = lanes
            .iter()
            .map(|lane| (f64::from(*lane) - f64::from(most)).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        for (lane, weight) in lanes.iter_mut().zip(weights) {
            *lane = (weight / total) as f32;
        }
    }
    out
}

/// Indices of the experts that each row of logits takes, then their weights.
pub fn routes(logits: &Matrix, bias: Option<&[f32]>, spec: &RouteSpec) -> Matrix {
    let mut out = Matrix::zeros(logits.rows, 2 * spec.used as usize);
    for row in 0..logits.rows {
        spec.choose(logits.row(row), bias, out.row_mut(row));
    }
    out
}

/// Products of each row with the experts that it takes, or their sums by weight: `routes` as [`routes()`] makes them. `product` is
/// asked for the product of one expert with one row.
pub fn experts(
    x: &Matrix,
    routes: &Matrix,
    product: impl Fn(usize, &Matrix) -> Matrix,
    combine: bool,
) -> Matrix {
    let used = routes.width / 2;
    let rows = (0..x.rows).map(|row| {
        let (chosen, weights) = routes.row(row).split_at(used);
        let products = chosen.iter().enumerate().map(|(place, expert)| {
            let inputs = if combine { used } else { 1 };
            product(*expert as usize, &part(x, row, place % inputs, inputs))
        });
        match combine {
            true => summed(products, weights),
            false => products.flat_map(|product| product.data).collect(),
        }
    });
    stacked(rows)
}

/// The sum of single rows by their weights, which is rounded once.
fn summed(products: impl Iterator<Item = Matrix>, weights: &[f32]) -> Vec<f32> {
    let mut sums = vec![];
    for (product, by) in products.zip(weights) {
        sums.resize(product.width, 0.0);
        for (sum, y) in sums.iter_mut().zip(&product.data) {
            *sum += f64::from(*by) * f64::from(*y);
        }
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

/// The product of each head's lanes with a matrix of its own, which `product` is asked for as in [`experts()`].
pub fn head_products(
    x: &Matrix,
    product: impl Fn(usize, &Matrix) -> Matrix,
    heads: usize,
) -> Matrix {
    let rows = (0..x.rows).map(|row| {
        let products = (0..heads).map(|head| product(head, &part(x, row, head, heads)));
        products.flat_map(|product| product.data).collect()
    });
    stacked(rows)
}

/// One of `parts` equal parts of a row.
fn part(x: &Matrix, row: usize, at: usize, parts: usize) -> Matrix {
    let width = x.width / parts;
    Matrix {
        rows: 1,
        width,
        data: x.row(row)[at * width..][..width].to_vec(),
    }
}

/// Rows of equal width.
fn stacked(rows: impl Iterator<Item = Vec<f32>>) -> Matrix {
    let rows: Vec<Vec<f32>> = rows.collect();
    Matrix {
        rows: rows.len(),
        width: rows.first().map_or(0, Vec::len),
        data: rows.concat(),
    }
}

/// Some lanes of each group of lanes.
pub fn lanes(x: &Matrix, group: usize, taken: std::ops::Range<usize>) -> Matrix {
    let mut out = Matrix::zeros(x.rows, x.width / group * taken.len());
    for row in 0..x.rows {
        let groups = x.row(row).chunks(group);
        for (to, from) in out.row_mut(row).chunks_mut(taken.len()).zip(groups) {
            to.copy_from_slice(&from[taken.clone()]);
        }
    }
    out
}

/// Lanes of two, group by group: `left` of the one, `right` of the other.
pub fn join(a: &Matrix, b: &Matrix, left: usize, right: usize) -> Matrix {
    let mut out = Matrix::zeros(a.rows, a.width + b.width);
    for row in 0..a.rows {
        let groups = a.row(row).chunks(left).zip(b.row(row).chunks(right));
        for (to, (a, b)) in out.row_mut(row).chunks_mut(left + right).zip(groups) {
            to[..left].copy_from_slice(a);
            to[left..].copy_from_slice(b);
        }
    }
    out
}

/// Each head's pairs turned by the row's entry of a table of `(cos, sin)`, `[rows, dims]`; lanes past `dims` stay.
pub fn rotate(
    x: &Matrix,
    table: &[f32],
    (dims, layout): (u32, RopeLayout),
    head_dim: usize,
) -> Matrix {
    let dims = dims as usize;
    let mut out = x.clone();
    for (row, turns) in (0..x.rows).zip(table.chunks(dims)) {
        for head in out.row_mut(row).chunks_mut(head_dim) {
            for (pair, turn) in turns.chunks(2).enumerate() {
                let (i, j) = match layout {
                    RopeLayout::Half => (pair, pair + dims / 2),
                    RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let (a, b) = (head[i], head[j]);
                head[i] = a * turn[0] - b * turn[1];
                head[j] = b * turn[0] + a * turn[1];
            }
        }
    }
    out
}

/// Attention of queries at positions from `position` on over keys from position 0 on. `v` are the values, or the keys where values
/// are their first lanes.
pub fn attention(
    spec: &AttentionSpec,
    q: &Matrix,
    k: &Matrix,
    v: &Matrix,
    position: usize,
) -> Matrix {
    let (d, value_dim) = (spec.head_dim as usize, spec.value_dim() as usize);
    let shared = (spec.heads / spec.kv_heads) as usize;
    let mut out = Matrix::zeros(q.rows, spec.heads as usize * value_dim);
    for row in 0..q.rows {
        let last = position + row;
        let first = spec
            .window
            .map_or(0, |w| (last + 1).saturating_sub(w as usize));
        for head in 0..spec.heads as usize {
            let lanes = |m: &'_ Matrix, row: usize| m.row(row)[head / shared * d..][..d].to_vec();
            let query = &q.row(row)[head * d..][..d];
            let scores: Vec<f64> = (first..=last)
                .map(|at| {
                    let score = f64::from(spec.scale) * dot(query, &lanes(k, at));
                    let cap = |c: f32| f64::from(c) * (score / f64::from(c)).tanh();
                    spec.softcap.map_or(score, cap)
                })
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0; value_dim];
            for (at, weight) in (first..=last).zip(&weights) {
                for (sum, value) in sums.iter_mut().zip(lanes(v, at)) {
                    *sum += weight / total * f64::from(value);
                }
            }
            let out = &mut out.row_mut(row)[head * value_dim..][..value_dim];
            for (lane, sum) in out.iter_mut().zip(sums) {
                *lane = sum as f32;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Matrix, erf, softmax};

    /// Weights of 1, 2 and 5 of 8, and of 1 and 3 of 4, by their logarithms; what all lanes of a group have more changes nothing.
    #[test]
    fn softmax_is_the_share_of_exponentials() {
        let (two, three, five) = (2f32.ln(), 3f32.ln(), 5f32.ln());
        for (group, data, want) in [
            (3, vec![0.0, two, five], vec![0.125, 0.25, 0.625]),
            (2, vec![three, 0.0, 0.0, 0.0], vec![0.75, 0.25, 0.5, 0.5]),
            (2, vec![1e4, 1e4, -1e4, 1e4], vec![0.5, 0.5, 0.0, 1.0]),
            (1, vec![-3e38, 7.0], vec![1.0, 1.0]),
        ] {
            let x = Matrix {
                rows: 1,
                width: data.len(),
                data,
            };
            let have = softmax(&x, group).data;
            let near = have.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-7);
            assert!(near, "{x:?} in groups of {group}: {have:?}");
        }
    }

    /// Values of Abramowitz and Stegun, table 7.1, and the two branches' meeting point.
    #[test]
    fn erf_is_the_tabulated_function() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.5204998778),
            (1.0, 0.8427007929),
            (2.0, 0.9953222650),
            (3.0, 0.9999779095),
        ] {
            assert!(
                (erf(x) - want).abs() < 1e-10 && (erf(-x) + want).abs() < 1e-10,
                "{x}"
            );
        }
        assert!((erf(3.0 - 1e-13) - erf(3.0)).abs() < 1e-12);
    }
}
