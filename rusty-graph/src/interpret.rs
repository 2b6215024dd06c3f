//! The interpreter: a graph run node by node in the plainest way, as the oracle for everything faster.
//!
//! One sequence is computed in one pass from position 0, with every row selected. Values are single
//! precision; sums accumulate in double precision, so what a node gives is its operands' exact result,
//! rounded once. It is clear, not fast: small models only.

use rusty_loader::ModelFile;

use crate::{
    AttentionSpec, BinaryOp, Error, Graph, Input, Node, Op, Result, RopeLayout, RopeSpec,
    RouteSpec, SiteId, UnaryOp, ValueId,
};

/// A matrix of f32, row by row. Weight vectors are one row; token ids are kept as numbers of width 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Width of a row.
    pub width: usize,
    /// `rows * width` values.
    pub data: Vec<f32>,
}

impl Matrix {
    fn zeros(rows: usize, width: usize) -> Self {
        Self {
            rows,
            width,
            data: vec![0.0; rows * width],
        }
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..][..self.width]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.width..][..self.width]
    }

    fn map(&self, f: impl Fn(f32) -> f32) -> Self {
        Self {
            data: self.data.iter().map(|x| f(*x)).collect(),
            ..*self
        }
    }
}

/// A low-rank change of one site: `y += scale * B (A x)`. (arXiv 2106.09685)
#[derive(Clone, Debug)]
pub struct SiteLora {
    /// The product that is changed.
    pub site: SiteId,
    /// `[rank, k]`.
    pub a: Vec<f32>,
    /// `[n, rank]`.
    pub b: Vec<f32>,
    /// Factor.
    pub scale: f32,
}

/// All values of one pass.
#[derive(Clone, Debug)]
pub struct Values {
    values: Vec<Matrix>,
    outputs: [ValueId; 2],
}

impl Values {
    /// The value that a node defined.
    pub fn get(&self, id: ValueId) -> Option<&Matrix> {
        self.values.get(id.index())
    }

    /// Logits of every position, `[T, vocab]`.
    pub fn logits(&self) -> &Matrix {
        &self.values[self.outputs[0].index()]
    }

    /// Normed hidden rows of every position, `[T, width]`.
    pub fn hidden(&self) -> &Matrix {
        &self.values[self.outputs[1].index()]
    }
}

/// A graph with its weights decoded.
#[derive(Debug)]
pub struct Interpreter<'g> {
    graph: &'g Graph,
    weights: Vec<Matrix>,
    outputs: [ValueId; 2],
}

impl<'g> Interpreter<'g> {
    /// Verifies the graph and decodes its weights.
    ///
    /// # Errors
    /// What [`verify`](crate::verify()) finds; [`Error::Tensor`] where the file lacks a weight or has another
    /// shape.
    pub fn new(graph: &'g Graph, file: &dyn ModelFile) -> Result<Self> {
        crate::verify(graph)?;
        let weights = graph.weights.iter().map(|decl| {
            let fail = |reason: &str| Error::Tensor {
                model: file.label().into(),
                tensor: decl.name.clone(),
                reason: reason.into(),
            };
            let view = file.tensor(&decl.name).ok_or_else(|| fail("is missing"))?;
            if !view
                .shape
                .iter()
                .copied()
                .eq(decl.shape.iter().map(|d| *d as usize))
            {
                return Err(fail("has another shape than the graph states"));
            }
            let mut matrix = Matrix::zeros(view.rows(), view.row_len());
            view.format.decode_row(&view.bytes, &mut matrix.data);
            Ok(matrix)
        });
        Ok(Self {
            graph,
            weights: weights.collect::<Result<_>>()?,
            outputs: [graph.outputs[0], graph.outputs[1]],
        })
    }

    /// Runs one sequence from position 0.
    ///
    /// # Errors
    /// [`Error::Input`] where a token is outside the vocabulary or a delta does not fit its site.
    pub fn run(&self, tokens: &[u32], deltas: &[SiteLora]) -> Result<Values> {
        let vocab = self.graph.vocab;
        if let Some(token) = tokens.iter().find(|t| **t >= vocab) {
            return Err(input(
                "tokens",
                format!("{token} is outside the vocabulary of {vocab}"),
            ));
        }
        for delta in deltas {
            self.check(delta)?;
        }
        let mut values: Vec<Matrix> = Vec::with_capacity(self.graph.nodes.len());
        for node in &self.graph.nodes {
            let value = self.node(node, &values, tokens, deltas);
            values.push(value);
        }
        Ok(Values {
            values,
            outputs: self.outputs,
        })
    }

    fn check(&self, delta: &SiteLora) -> Result<()> {
        let Some(site) = self.graph.sites.get(delta.site.index()) else {
            return Err(input(
                "delta",
                format!("{} is no site of the graph", delta.site),
            ));
        };
        let (k, n) = (site.k as usize, site.n as usize);
        let rank = delta.a.len() / k.max(1);
        if delta.a.len() != rank * k || delta.b.len() != n * rank {
            return Err(input(
                &site.name,
                format!("a delta that is not [r, {k}] and [{n}, r]"),
            ));
        }
        Ok(())
    }

    fn node(&self, node: &Node, values: &[Matrix], tokens: &[u32], deltas: &[SiteLora]) -> Matrix {
        let operand = |i: usize| &values[node.inputs[i].index()];
        match &node.op {
            Op::Input(Input::Tokens) => Matrix {
                rows: tokens.len(),
                width: 1,
                data: tokens.iter().map(|t| *t as f32).collect(),
            },
            Op::Weight(w) => self.weights[w.index()].clone(),
            Op::Gather => {
                let table = operand(0);
                let mut out = Matrix::zeros(tokens.len(), table.width);
                for (row, token) in tokens.iter().enumerate() {
                    out.row_mut(row).copy_from_slice(table.row(*token as usize));
                }
                out
            }
            Op::SelectRows => operand(0).clone(),
            Op::MatMul { site } => {
                let mut out = product(operand(0), operand(1));
                for delta in deltas.iter().filter(|d| Some(d.site) == *site) {
                    add_delta(&mut out, operand(0), delta);
                }
                out
            }
            Op::Route(spec) => routes(operand(0), spec),
            Op::Experts { combine } => {
                let weights = &node.inputs[2..];
                let weight = |e: usize| &values[weights[e].index()];
                experts(operand(0), operand(1), weight, *combine)
            }
            Op::Unary(op) => operand(0).map(|x| unary(*op, x)),
            Op::Binary(op) => binary(*op, operand(0), operand(1)),
            Op::Scale(c) => operand(0).map(|x| c * x),
            Op::RmsNorm { eps, group } => {
                rms_norm(operand(0), operand(1).row(0), *eps, *group as usize)
            }
            Op::Rope { rope, head_dim } => {
                rotate(operand(0), self.graph.rope(*rope), *head_dim as usize)
            }
            Op::Attention(spec) => attention(spec, operand(0), operand(1), operand(2)),
        }
    }
}

fn input(what: &str, reason: String) -> Error {
    Error::Input {
        what: what.into(),
        reason,
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

fn product(x: &Matrix, w: &Matrix) -> Matrix {
    let mut out = Matrix::zeros(x.rows, w.rows);
    for row in 0..x.rows {
        for n in 0..w.rows {
            out.row_mut(row)[n] = dot(x.row(row), w.row(n)) as f32;
        }
    }
    out
}

fn add_delta(out: &mut Matrix, x: &Matrix, delta: &SiteLora) {
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

fn unary(op: UnaryOp, x: f32) -> f32 {
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
fn binary(op: BinaryOp, a: &Matrix, b: &Matrix) -> Matrix {
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

fn rms_norm(x: &Matrix, weight: &[f32], eps: f32, group: usize) -> Matrix {
    let mut out = x.clone();
    for lanes in out.data.chunks_mut(group) {
        let factor = 1.0 / (dot(lanes, lanes) / group as f64 + f64::from(eps)).sqrt();
        for (lane, w) in lanes.iter_mut().zip(weight) {
            *lane = (f64::from(*lane) * factor * f64::from(*w)) as f32;
        }
    }
    out
}

fn routes(logits: &Matrix, spec: &RouteSpec) -> Matrix {
    let mut out = Matrix::zeros(logits.rows, 2 * spec.used as usize);
    for row in 0..logits.rows {
        spec.choose(logits.row(row), out.row_mut(row));
    }
    out
}

fn experts<'a>(
    x: &Matrix,
    routes: &Matrix,
    weight: impl Fn(usize) -> &'a Matrix,
    combine: bool,
) -> Matrix {
    let (n, k) = (weight(0).rows, weight(0).width);
    let used = routes.width / 2;
    let mut out = Matrix::zeros(x.rows, if combine { n } else { used * n });
    for row in 0..x.rows {
        let (chosen, weights) = routes.row(row).split_at(used);
        let mut sums = vec![0.0; out.width];
        for (j, (e, by)) in chosen.iter().zip(weights).enumerate() {
            let w = weight(*e as usize);
            let input = if combine {
                &x.row(row)[j * k..][..k]
            } else {
                x.row(row)
            };
            let (first, by) = if combine {
                (0, f64::from(*by))
            } else {
                (j * n, 1.0)
            };
            for (i, sum) in sums[first..][..n].iter_mut().enumerate() {
                *sum += by * dot(input, w.row(i));
            }
        }
        for (out, sum) in out.row_mut(row).iter_mut().zip(sums) {
            *out = sum as f32;
        }
    }
    out
}

fn rotate(x: &Matrix, spec: &RopeSpec, head_dim: usize) -> Matrix {
    let positions: Vec<u32> = (0..x.rows as u32).collect();
    let table = spec.table(&positions, x.rows as u32);
    let dims = spec.dims as usize;
    let mut out = x.clone();
    for (row, turns) in (0..x.rows).zip(table.chunks(dims)) {
        for head in out.row_mut(row).chunks_mut(head_dim) {
            for (pair, turn) in turns.chunks(2).enumerate() {
                let (i, j) = match spec.layout {
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

fn attention(spec: &AttentionSpec, q: &Matrix, k: &Matrix, v: &Matrix) -> Matrix {
    let d = spec.head_dim as usize;
    let shared = (spec.heads / spec.kv_heads) as usize;
    let mut out = Matrix::zeros(q.rows, q.width);
    for row in 0..q.rows {
        let first = spec
            .window
            .map_or(0, |w| (row + 1).saturating_sub(w as usize));
        for head in 0..spec.heads as usize {
            let lanes = |m: &'_ Matrix, row: usize| m.row(row)[head / shared * d..][..d].to_vec();
            let query = &q.row(row)[head * d..][..d];
            let scores: Vec<f64> = (first..=row)
                .map(|at| {
                    let score = f64::from(spec.scale) * dot(query, &lanes(k, at));
                    let cap = |c: f32| f64::from(c) * (score / f64::from(c)).tanh();
                    spec.softcap.map_or(score, cap)
                })
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0; d];
            for (at, weight) in (first..=row).zip(&weights) {
                for (sum, value) in sums.iter_mut().zip(lanes(v, at)) {
                    *sum += weight / total * f64::from(value);
                }
            }
            for (lane, sum) in out.row_mut(row)[head * d..][..d].iter_mut().zip(sums) {
                *lane = sum as f32;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::erf;

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
