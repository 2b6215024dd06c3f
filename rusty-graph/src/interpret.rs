//! The interpreter: a graph run node by node in the plainest way, as the oracle for everything faster.
//!
//! One sequence is computed in one pass from position 0, with every row selected. Values are single
//! precision; sums accumulate in double precision, so what a node gives is its operands' exact result,
//! rounded once (products that are then summed, or that an adapter changes, twice). It is clear, not fast: small models
//! only.

use rusty_loader::ModelFile;

pub mod ops;

use crate::{Error, Graph, Input, Node, Op, Result, SiteId, ValueId};
use ops::{
    add_delta, attention, binary, experts, gather, head_products, join, lanes, product, rms_norm,
    rotate, routes, softmax, unary,
};

/// A matrix of f32, row by row. Weight vectors are one row; token ids are kept as numbers of width 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Width of a row.
    pub width: usize,
    /// `rows * width` values.
    pub data: Vec<f32>,
}

impl Matrix {
    /// Zeros.
    pub fn zeros(rows: usize, width: usize) -> Self {
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

    /// One row, to be changed.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.width..][..self.width]
    }

    /// A function of each element.
    pub fn map(&self, f: impl Fn(f32) -> f32) -> Self {
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
    logits: ValueId,
    hidden: ValueId,
}

impl Values {
    /// The value that a node defined.
    pub fn get(&self, id: ValueId) -> Option<&Matrix> {
        self.values.get(id.index())
    }

    /// Logits of every position, `[T, vocab]`.
    pub fn logits(&self) -> &Matrix {
        &self.values[self.logits.index()]
    }

    /// Normed hidden rows of every position, `[T, width]`.
    pub fn hidden(&self) -> &Matrix {
        &self.values[self.hidden.index()]
    }
}

/// A graph with its weights decoded.
#[derive(Debug)]
pub struct Interpreter<'g> {
    graph: &'g Graph,
    weights: Vec<Matrix>,
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
            logits: self.graph.logits,
            hidden: self.graph.hidden,
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
            Op::Gather => gather(operand(0), tokens),
            Op::SelectRows => operand(0).clone(),
            Op::MatMul { site } => adapted(operand(0), operand(1), *site, deltas),
            Op::Route(spec) => {
                let bias = node.inputs.get(1).map(|b| values[b.index()].row(0));
                routes(operand(0), bias, spec)
            }
            Op::HeadMatMul { sites } => {
                let weights = &node.inputs[1..];
                let product = |head: usize, x: &Matrix| {
                    adapted(x, &values[weights[head].index()], at(*sites, head), deltas)
                };
                head_products(operand(0), product, weights.len())
            }
            Op::Lanes {
                group,
                first,
                count,
            } => {
                let (group, first) = (*group as usize, *first as usize);
                lanes(operand(0), group, first..first + *count as usize)
            }
            Op::Join { left, right } => {
                join(operand(0), operand(1), *left as usize, *right as usize)
            }
            Op::Experts { combine, sites } => {
                let weights = &node.inputs[2..];
                let product = |e: usize, x: &Matrix| {
                    adapted(x, &values[weights[e].index()], at(*sites, e), deltas)
                };
                experts(operand(0), operand(1), product, *combine)
            }
            Op::Unary(op) => operand(0).map(|x| unary(*op, x)),
            Op::Binary(op) => binary(*op, operand(0), operand(1)),
            Op::Scale(c) => operand(0).map(|x| c * x),
            Op::RmsNorm { eps, group } => {
                rms_norm(operand(0), operand(1).row(0), *eps, *group as usize)
            }
            Op::Softmax { group } => softmax(operand(0), *group as usize),
            Op::Rope { rope, head_dim } => {
                let (x, spec) = (operand(0), self.graph.rope(*rope));
                let positions: Vec<u32> = (0..x.rows as u32).collect();
                let table = spec.table(&positions, x.rows as u32);
                rotate(x, &table, (spec.dims, spec.layout), *head_dim as usize)
            }
            Op::Attention(spec) => {
                let values = operand(node.inputs.len() - 1);
                attention(spec, operand(0), operand(1), values, 0)
            }
        }
    }
}

/// The site of one of several products.
fn at(first: Option<SiteId>, number: usize) -> Option<SiteId> {
    first.map(|first| SiteId(first.0 + number as u32))
}

/// A product with the deltas at its site.
fn adapted(x: &Matrix, weight: &Matrix, site: Option<SiteId>, deltas: &[SiteLora]) -> Matrix {
    let mut out = product(x, weight);
    for delta in deltas.iter().filter(|d| Some(d.site) == site) {
        add_delta(&mut out, x, delta);
    }
    out
}

fn input(what: &str, reason: String) -> Error {
    Error::Input {
        what: what.into(),
        reason,
    }
}
