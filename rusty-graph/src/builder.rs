//! Building a [`Graph`]: each method adds one node, infers its shape and returns its value.
//!
//! The builder keeps the graph valid at every step; [`GraphBuilder::finish`] verifies it as a whole.

use rusty_loader::Format;

use crate::ir::NO_VALUE;
use crate::shape::{default_symbols, infer};
use crate::{
    AttentionSpec, BinaryOp, Dim, Error, Graph, Input, KvLayer, Node, NodeId, Op, Result, RopeId,
    RopeSpec, RouteSpec, Site, SiteId, UnaryOp, Value, ValueId, WeightDecl, WeightId,
};
use std::collections::HashMap;

/// A graph under construction.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    weights: HashMap<String, ValueId>,
}

impl GraphBuilder {
    /// An empty graph with the default symbols `T` and `L`.
    pub fn new(arch: &str, context: u32, vocab: u32) -> Self {
        Self {
            graph: Graph {
                arch: arch.into(),
                symbols: default_symbols(),
                nodes: vec![],
                values: vec![],
                weights: vec![],
                sites: vec![],
                site_ids: HashMap::new(),
                ropes: vec![],
                kv: vec![],
                logits: NO_VALUE,
                hidden: NO_VALUE,
                context,
                vocab,
            },
            weights: HashMap::new(),
        }
    }

    /// Innermost extent of a value, 0 where there is no such value.
    pub fn width(&self, value: ValueId) -> u32 {
        let value = self.graph.values.get(value.index());
        value.map_or(0, |v| extent(&v.shape))
    }

    /// Adds any node. The typed methods below say the same with fewer words.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the operands do not fit the op.
    pub fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> Result<ValueId> {
        let shape = infer(&self.graph, &op, inputs).map_err(|reason| Error::Invalid {
            node: name.into(),
            reason,
        })?;
        let value = ValueId(self.graph.values.len() as u32);
        self.graph.values.push(Value {
            name: name.into(),
            shape,
            def: NodeId(self.graph.nodes.len() as u32),
        });
        self.graph.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            output: value,
        });
        Ok(value)
    }

    /// The step's token ids, `[T]`.
    ///
    /// # Errors
    /// None in practice: the op has no operands.
    pub fn tokens(&mut self) -> Result<ValueId> {
        self.node("tokens", Op::Input(Input::Tokens), &[])
    }

    /// A declared weight; asking again for the same name gives the same value.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the name was declared with another shape or format.
    pub fn weight(&mut self, name: &str, shape: &[u32], format: Format) -> Result<ValueId> {
        if let Some(&value) = self.weights.get(name) {
            let known = self
                .graph
                .as_weight(value)
                .map(|w| self.graph.weight(w).clone());
            return match known {
                Some(decl) if decl.shape == shape && decl.format == format => Ok(value),
                _ => Err(Error::Invalid {
                    node: name.into(),
                    reason: format!("declared twice, the second time as {shape:?}"),
                }),
            };
        }
        let id = WeightId(self.graph.weights.len() as u32);
        self.graph.weights.push(WeightDecl {
            name: name.into(),
            shape: shape.to_vec(),
            format,
        });
        let value = self.node(name, Op::Weight(id), &[])?;
        self.weights.insert(name.into(), value);
        Ok(value)
    }

    /// Declares a rotary embedding; equal specifications share an id.
    pub fn rope_spec(&mut self, spec: RopeSpec) -> RopeId {
        let known = self.graph.ropes.iter().position(|r| *r == spec);
        let index = known.unwrap_or_else(|| {
            self.graph.ropes.push(spec);
            self.graph.ropes.len() - 1
        });
        RopeId(index as u32)
    }

    /// `(table [N, D], ids [T]) -> [T, D]`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn gather(&mut self, name: &str, table: ValueId, ids: ValueId) -> Result<ValueId> {
        self.node(name, Op::Gather, &[table, ids])
    }

    /// `x [T, K] w^T (+ bias [N]) -> [T, N]`, `w [N, K]`, at an adapter site that is named as the value is.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn matmul(
        &mut self,
        name: &str,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
    ) -> Result<ValueId> {
        let rule = |reason| Error::Invalid {
            node: name.into(),
            reason,
        };
        let plain = Op::MatMul { site: None };
        let shape = infer(&self.graph, &plain, &[x, weight]).map_err(rule)?;
        let site = self.graph.add_site(Site {
            name: name.into(),
            k: self.width(x),
            n: extent(&shape),
            grouped: false,
        });
        let product = self.node(name, Op::MatMul { site: Some(site) }, &[x, weight])?;
        match bias {
            None => Ok(product),
            Some(bias) => self.binary(&format!("{name}.biased"), BinaryOp::Add, product, bias),
        }
    }

    /// RMS norm over the whole row, `x [T, D]`, `weight [D]`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weight: ValueId,
        eps: f32,
    ) -> Result<ValueId> {
        let group = self.width(x);
        self.node(name, Op::RmsNorm { eps, group }, &[x, weight])
    }

    /// RMS norm over each head of `head_dim` lanes, all with the same weight `[head_dim]`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn head_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weight: ValueId,
        eps: f32,
        head_dim: u32,
    ) -> Result<ValueId> {
        let group = head_dim;
        self.node(name, Op::RmsNorm { eps, group }, &[x, weight])
    }

    /// Softmax over each group of `group` lanes, `x [T, G group]`: over the whole row where `group` is its width.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn softmax(&mut self, name: &str, x: ValueId, group: u32) -> Result<ValueId> {
        self.node(name, Op::Softmax { group }, &[x])
    }

    /// Rotates each head of `head_dim` lanes by its row's position.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn rope(&mut self, name: &str, x: ValueId, rope: RopeId, head_dim: u32) -> Result<ValueId> {
        self.node(name, Op::Rope { rope, head_dim }, &[x])
    }

    /// The experts that each row takes, by router logits `[T, experts]` and, where there is one, a bias `[experts]` on
    /// their scores.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn route(
        &mut self,
        name: &str,
        logits: ValueId,
        bias: Option<ValueId>,
        spec: RouteSpec,
    ) -> Result<ValueId> {
        let inputs: Vec<ValueId> = std::iter::once(logits).chain(bias).collect();
        self.node(name, Op::Route(spec), &inputs)
    }

    /// The product of each head's lanes with a matrix of its own, see [`Op::HeadMatMul`]; that of head `h` is at the adapter site
    /// `NAME.h`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn head_matmul(&mut self, name: &str, x: ValueId, weights: &[ValueId]) -> Result<ValueId> {
        let sites = Some(self.sites(name, weights));
        let inputs = [&[x], weights].concat();
        self.node(name, Op::HeadMatMul { sites }, &inputs)
    }

    /// Lanes `first .. first + count` of each group of `group`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn lanes(
        &mut self,
        name: &str,
        x: ValueId,
        group: u32,
        first: u32,
        count: u32,
    ) -> Result<ValueId> {
        let op = Op::Lanes {
            group,
            first,
            count,
        };
        self.node(name, op, &[x])
    }

    /// The lanes of two values, `left` and `right` of them at a time.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn join(
        &mut self,
        name: &str,
        [a, b]: [ValueId; 2],
        [left, right]: [u32; 2],
    ) -> Result<ValueId> {
        self.node(name, Op::Join { left, right }, &[a, b])
    }

    /// Products with the experts that each row takes, see [`Op::Experts`]; that of expert `e` is at the adapter site `NAME.e`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn experts(
        &mut self,
        name: &str,
        x: ValueId,
        routes: ValueId,
        weights: &[ValueId],
        combine: bool,
    ) -> Result<ValueId> {
        let inputs = [&[x, routes], weights].concat();
        let sites = Some(self.sites(name, weights));
        self.node(name, Op::Experts { combine, sites }, &inputs)
    }

    /// Sites of products with these matrices `[N, K]`, and the first of them.
    fn sites(&mut self, name: &str, weights: &[ValueId]) -> SiteId {
        let first = SiteId(self.graph.sites.len() as u32);
        for (i, weight) in weights.iter().enumerate() {
            let value = self.graph.values.get(weight.index());
            let shape = value.map_or(&[][..], |v| &v.shape);
            self.graph.add_site(Site {
                name: format!("{name}.{i}"),
                k: extent(shape),
                n: extent(shape.get(..1).unwrap_or_default()),
                grouped: true,
            });
        }
        first
    }

    /// Attention of a new layer: declares its cache and sets `spec.layer` to it.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn attention(
        &mut self,
        name: &str,
        [q, k]: [ValueId; 2],
        v: Option<ValueId>,
        spec: AttentionSpec,
    ) -> Result<ValueId> {
        let layer = self.graph.kv.len() as u32;
        let spec = AttentionSpec { layer, ..spec };
        let inputs: Vec<ValueId> = [q, k].into_iter().chain(v).collect();
        let attended = self.node(name, Op::Attention(spec), &inputs)?;
        self.graph.kv.push(KvLayer {
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            values: spec.values,
        });
        Ok(attended)
    }

    /// An elementwise function.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn unary(&mut self, name: &str, op: UnaryOp, x: ValueId) -> Result<ValueId> {
        self.node(name, Op::Unary(op), &[x])
    }

    /// An elementwise function of two operands.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn binary(&mut self, name: &str, op: BinaryOp, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.node(name, Op::Binary(op), &[a, b])
    }

    /// Product, lane by lane.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn mul(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(name, BinaryOp::Mul, a, b)
    }

    /// Sum, lane by lane.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(name, BinaryOp::Add, a, b)
    }

    /// `c * x`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn scale(&mut self, name: &str, x: ValueId, c: f32) -> Result<ValueId> {
        self.node(name, Op::Scale(c), &[x])
    }

    /// The rows that want logits, `[L, width]`.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn select_rows(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        self.node(name, Op::SelectRows, &[x])
    }

    /// The finished graph: logits `[L, vocab]` and the normed rows `[L, width]` they come from.
    ///
    /// # Errors
    /// [`Error::Invalid`] where an invariant of [`crate::verify()`] does not hold.
    pub fn finish(mut self, logits: ValueId, hidden: ValueId) -> Result<Graph> {
        (self.graph.logits, self.graph.hidden) = (logits, hidden);
        crate::verify::verify(&self.graph)?;
        Ok(self.graph)
    }
}

fn extent(shape: &[Dim]) -> u32 {
    match shape.last() {
        Some(Dim::Const(n)) => *n,
        _ => 0,
    }
}
