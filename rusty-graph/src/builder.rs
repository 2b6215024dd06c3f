//! Building graphs: typed methods that declare weights, check them against the file and infer shapes.

use crate::{
    AttentionSpec, BinaryOp, Dim, Error, Graph, Input, KvLayer, Node, NodeId, Op, Result, RopeId,
    RopeSpec, Site, SiteId, SymId, Symbol, UnaryOp, Value, ValueId, WeightDecl, WeightId,
};
use rusty_loader::ModelFile;

/// Rows of a step at most; longer prompts go in chunks.
pub const MAX_ROWS: u32 = 512;

/// Rows of a step that want an output at most.
pub const MAX_OUTPUT_ROWS: u32 = 64;

/// Builds one graph from a model file.
pub struct GraphBuilder<'a> {
    file: &'a dyn ModelFile,
    graph: Graph,
}

impl<'a> GraphBuilder<'a> {
    /// An empty graph for a file.
    pub fn new(file: &'a dyn ModelFile, context: u32, vocab: u32) -> Self {
        let symbols = vec![
            Symbol {
                name: "T".into(),
                max: MAX_ROWS,
            },
            Symbol {
                name: "L".into(),
                max: MAX_OUTPUT_ROWS,
            },
        ];
        let graph = Graph {
            arch: file.arch().to_string(),
            symbols,
            nodes: vec![],
            values: vec![],
            weights: vec![],
            sites: vec![],
            ropes: vec![],
            kv: vec![],
            outputs: vec![],
            context,
            vocab,
        };
        Self { file, graph }
    }

    /// Whether the file has a tensor.
    pub fn has(&self, tensor: &str) -> bool {
        self.file.tensor(tensor).is_some()
    }

    /// Declares a weight of a given shape and gives its value; a weight named before is shared.
    pub fn weight(&mut self, name: &str, shape: &[u32]) -> Result<ValueId> {
        if let Some(at) = self.graph.weights.iter().position(|w| w.name == name) {
            let is_it = |n: &Node| n.op == Op::Weight(WeightId(at as u32));
            if let Some(node) = self.graph.nodes.iter().find(|n| is_it(n)) {
                return Ok(node.output);
            }
        }
        let fail = |reason: String| Error::Tensor {
            model: self.file.label().to_string(),
            tensor: name.to_string(),
            reason,
        };
        let view = self
            .file
            .tensor(name)
            .ok_or_else(|| fail("is missing".into()))?;
        if !view
            .shape
            .iter()
            .map(|d| *d as u64)
            .eq(shape.iter().map(|d| u64::from(*d)))
        {
            return Err(fail(format!(
                "has shape {:?}, the architecture needs {shape:?}",
                view.shape
            )));
        }
        let declared = WeightDecl {
            name: name.into(),
            shape: shape.to_vec(),
            format: view.format,
        };
        self.graph.weights.push(declared);
        let id = WeightId(self.graph.weights.len() as u32 - 1);
        let dims = shape.iter().map(|d| Dim::Const(*d)).collect();
        Ok(self.push(name, Op::Weight(id), vec![], dims))
    }

    /// Adds a rotary specification.
    pub fn rope_spec(&mut self, spec: RopeSpec) -> RopeId {
        self.graph.ropes.push(spec);
        RopeId(self.graph.ropes.len() as u32 - 1)
    }

    /// Rows of the embedding table for the step's tokens, `[T, width]`.
    pub fn embed(&mut self, name: &str, table: ValueId) -> ValueId {
        let ids = self.push(
            "tokens",
            Op::Input(Input::Tokens),
            vec![],
            vec![Dim::Sym(SymId(0))],
        );
        let width = Dim::Const(self.graph.width(table));
        self.push(
            name,
            Op::Gather,
            vec![table, ids],
            vec![Dim::Sym(SymId(0)), width],
        )
    }

    /// The product with weight `name.weight [n, k]` at site `name`, plus `name.bias` where the file has one.
    pub fn linear(&mut self, name: &str, x: ValueId, n: u32) -> Result<ValueId> {
        let k = self.graph.width(x);
        let weight = self.weight(&format!("{name}.weight"), &[n, k])?;
        let y = self.matmul(name, x, weight, n);
        let bias = format!("{name}.bias");
        if !self.has(&bias) {
            return Ok(y);
        }
        let bias_value = self.weight(&bias, &[n])?;
        Ok(self.binary(&format!("{name}.biased"), BinaryOp::Add, y, bias_value))
    }

    /// The product with a declared matrix, at a site of its own.
    pub fn matmul(&mut self, name: &str, x: ValueId, weight: ValueId, n: u32) -> ValueId {
        let k = self.graph.width(x);
        self.graph.sites.push(Site {
            name: name.into(),
            k,
            n,
        });
        let site = Some(SiteId(self.graph.sites.len() as u32 - 1));
        let rows = self.rows(x);
        self.push(
            name,
            Op::MatMul { site },
            vec![x, weight],
            vec![rows, Dim::Const(n)],
        )
    }

    /// RMS norm over groups of `group` lanes with weight `name.weight`.
    pub fn rms_norm(&mut self, name: &str, x: ValueId, group: u32, eps: f32) -> Result<ValueId> {
        let weight = self.weight(&format!("{name}.weight"), &[group])?;
        let shape = self.graph.value(x).shape.clone();
        Ok(self.push(name, Op::RmsNorm { eps, group }, vec![x, weight], shape))
    }

    /// Rotates heads by position.
    pub fn rope(&mut self, name: &str, x: ValueId, rope: RopeId, head_dim: u32) -> ValueId {
        let shape = self.graph.value(x).shape.clone();
        self.push(name, Op::Rope { rope, head_dim }, vec![x], shape)
    }

    /// Causal attention over the layer's cache; layers are added in order.
    pub fn attention(
        &mut self,
        name: &str,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        spec: AttentionSpec,
    ) -> ValueId {
        self.graph.kv.push(KvLayer {
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
        });
        let shape = self.graph.value(q).shape.clone();
        self.push(name, Op::Attention(spec), vec![q, k, v], shape)
    }

    /// An elementwise function.
    pub fn unary(&mut self, name: &str, op: UnaryOp, x: ValueId) -> ValueId {
        let shape = self.graph.value(x).shape.clone();
        self.push(name, Op::Unary(op), vec![x], shape)
    }

    /// An elementwise function of two; `b` may be a vector.
    pub fn binary(&mut self, name: &str, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        let shape = self.graph.value(a).shape.clone();
        self.push(name, Op::Binary(op), vec![a, b], shape)
    }

    /// The rows that want an output.
    pub fn select_rows(&mut self, name: &str, x: ValueId) -> ValueId {
        let width = Dim::Const(self.graph.width(x));
        self.push(
            name,
            Op::SelectRows,
            vec![x],
            vec![Dim::Sym(SymId(1)), width],
        )
    }

    /// Ends the graph with its two outputs.
    pub fn finish(mut self, logits: ValueId, hidden: ValueId) -> Graph {
        self.graph.outputs = vec![logits, hidden];
        self.graph
    }

    fn rows(&self, x: ValueId) -> Dim {
        self.graph.value(x).shape[0]
    }

    fn push(&mut self, name: &str, op: Op, inputs: Vec<ValueId>, shape: Vec<Dim>) -> ValueId {
        let output = ValueId(self.graph.values.len() as u32);
        let def = NodeId(self.graph.nodes.len() as u32);
        self.graph.values.push(Value {
            name: name.into(),
            shape,
            def,
        });
        self.graph.nodes.push(Node { op, inputs, output });
        output
    }
}
