//! The chains as graphs. Their inputs are rows of tables, by token; `benches/burn` and `run_pytorch.py` make the
//! same numbers.

use rusty_graph::rope::RopeScaling;
use rusty_graph::{
    AttentionSpec, AttentionValues, Graph, GraphBuilder, RopeLayout, RopeSpec, UnaryOp, ValueId,
};
use rusty_loader::{Format, LoadedModel, SharedBytes, WeightView};
use serde::Serialize;
use std::collections::HashMap;

/// Rows of tables: row `i` of a step has row `i % VOCAB`. Few, because behind a chain comes a product with as many outputs.
pub const VOCAB: usize = 64;

/// Sizes: those of Qwen3-0.6B, and of a row of scores.
#[derive(Clone, Copy, Serialize)]
pub struct Dims {
    pub rows: usize,
    pub width: usize,
    pub inner: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Lanes of a row whose softmax is taken.
    pub scores: usize,
}

impl Dims {
    pub fn of(rows: usize) -> Self {
        Self {
            rows,
            width: 1024,
            inner: 3072,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            scores: 4096,
        }
    }
}

/// A chain by its name.
pub struct Chain {
    pub name: &'static str,
    build: fn(&mut Maker) -> ValueId,
}

/// All chains.
pub const CHAINS: &[Chain] = &[
    chain("add-multiply", |m| {
        let [a, b, c] = [1, 2, 3].map(|seed| m.rows(seed, m.dims.width));
        let sum = m.builder.add("sum", a, b).expect("sum");
        m.builder.mul("product", sum, c).expect("product")
    }),
    chain("norm", |m| {
        let x = m.rows(1, m.dims.width);
        m.norm(x, 2)
    }),
    chain("softmax", |m| {
        let x = m.rows(1, m.dims.scores);
        // Wide enough that shares differ.
        let scaled = m.builder.scale("scaled", x, 4.0).expect("scaled");
        let shares = m.builder.softmax("shares", scaled, m.dims.scores as u32);
        shares.expect("softmax")
    }),
    chain("rotary", |m| {
        let x = m.rows(1, m.dims.heads * m.dims.head_dim);
        let head_dim = m.dims.head_dim as u32;
        let rope = m.builder.rope_spec(RopeSpec {
            dims: head_dim,
            base: 1e4,
            layout: RopeLayout::Half,
            scaling: RopeScaling::None,
        });
        m.builder.rope("rotated", x, rope, head_dim).expect("rope")
    }),
    chain("matmul", |m| {
        let x = m.rows(1, m.dims.width);
        m.product("product", x, 2)
    }),
    chain("matmul-add-gelu", |m| {
        let x = m.rows(1, m.dims.width);
        let product = m.product("product", x, 2);
        let bias = m.vector(3, m.dims.inner);
        let sum = m.builder.add("sum", product, bias).expect("sum");
        m.builder.unary("gelu", UnaryOp::Gelu, sum).expect("gelu")
    }),
    chain("norm-gate-up-silu", |m| {
        let x = m.rows(1, m.dims.width);
        let x = m.norm(x, 2);
        let gate = m.product("gate", x, 3);
        let up = m.product("up", x, 4);
        let gate = m.builder.unary("silu", UnaryOp::Silu, gate).expect("silu");
        m.builder.mul("gated", gate, up).expect("product")
    }),
    chain("attention", |m| {
        let Dims {
            heads,
            kv_heads,
            head_dim,
            ..
        } = m.dims;
        let q = m.rows(1, heads * head_dim);
        let [k, v] = [2, 3].map(|seed| m.rows(seed, kv_heads * head_dim));
        let spec = AttentionSpec {
            layer: 0,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            values: AttentionValues::Own,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            softcap: None,
        };
        let attended = m.builder.attention("attended", [q, k], Some(v), spec);
        attended.expect("attention")
    }),
];

const fn chain(name: &'static str, build: fn(&mut Maker) -> ValueId) -> Chain {
    Chain { name, build }
}

impl Chain {
    /// The chain's graph and its weights.
    pub fn graph(&self, dims: Dims) -> (Graph, LoadedModel) {
        let mut builder = GraphBuilder::new("chain", dims.rows as u32, VOCAB as u32);
        let ids = builder.tokens().expect("tokens");
        let mut maker = Maker {
            dims,
            builder,
            ids,
            tensors: vec![],
        };
        let x = (self.build)(&mut maker);
        let width = maker.builder.width(x) as usize;
        let hidden = maker.builder.select_rows("selected", x).expect("rows");
        let output = maker.weight("output", 9, [VOCAB, width], 1.0);
        let logits = maker.builder.matmul("logits", hidden, output, None);
        let graph = maker.builder.finish(logits.expect("logits"), hidden);
        let file = LoadedModel::new("chain", "chain", HashMap::new(), maker.tensors);
        (graph.expect("graph"), file)
    }
}

/// The number at `i` of input `seed`, between `-spread` and `spread`; every side makes the same.
fn value(seed: usize, i: usize, spread: f32) -> f32 {
    let hash = ((i + seed * 1_000_003) as u32).wrapping_mul(2_654_435_761);
    ((hash >> 8) as f32 / (1u32 << 23) as f32 - 1.0) * spread
}

struct Maker {
    dims: Dims,
    builder: GraphBuilder,
    ids: ValueId,
    tensors: Vec<(String, WeightView)>,
}

impl Maker {
    fn tensor(&mut self, name: &str, seed: usize, shape: &[usize], spread: f32) -> ValueId {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| value(seed, i, spread));
        let bytes = values.flat_map(f32::to_le_bytes).collect();
        let view = WeightView {
            bytes: SharedBytes::from_vec(bytes),
            format: Format::F32,
            shape: shape.to_vec(),
        };
        self.tensors.push((name.into(), view));
        let shape: Vec<u32> = shape.iter().map(|n| *n as u32).collect();
        let weight = self.builder.weight(name, &shape, Format::F32);
        weight.expect("weight")
    }

    fn weight(&mut self, name: &str, seed: usize, shape: [usize; 2], spread: f32) -> ValueId {
        self.tensor(name, seed, &shape, spread)
    }

    fn vector(&mut self, seed: usize, width: usize) -> ValueId {
        self.tensor(&format!("vector.{seed}"), seed, &[width], 1.0)
    }

    /// Rows of activations.
    fn rows(&mut self, seed: usize, width: usize) -> ValueId {
        let table = self.weight(&format!("table.{seed}"), seed, [VOCAB, width], 1.7);
        let gathered = self.builder.gather(&format!("x.{seed}"), table, self.ids);
        gathered.expect("rows")
    }

    fn norm(&mut self, x: ValueId, seed: usize) -> ValueId {
        let gain = self.vector(seed, self.dims.width);
        self.builder
            .rms_norm("normed", x, gain, 1e-6)
            .expect("norm")
    }

    /// The product with a matrix that keeps a row's length.
    fn product(&mut self, name: &str, x: ValueId, seed: usize) -> ValueId {
        let (n, k) = (self.dims.inner, self.dims.width);
        let spread = (3.0 / k as f32).sqrt();
        let weight = self.weight(&format!("{name}.weight"), seed, [n, k], spread);
        let product = self.builder.matmul(name, x, weight, None);
        product.expect("product")
    }
}
