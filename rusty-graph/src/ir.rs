//! The graph itself.

use rusty_loader::Format;
use std::collections::HashMap;

use crate::{
    AttentionValues, Dim, NodeId, Op, RopeId, RopeScaling, RopeSpec, SiteId, Symbol, ValueId,
    WeightId,
};

/// A value: the result of exactly one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// For people: `blk.0.q`.
    pub name: String,
    /// `[rows, width]` for activations, `[rows]` for ids, the stored shape for weights.
    pub shape: Vec<Dim>,
    /// The node that defines it.
    pub def: NodeId,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Its operands, in the order the op states.
    pub inputs: Vec<ValueId>,
    /// Its result.
    pub output: ValueId,
}

/// A weight that a model file must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDecl {
    /// Canonical tensor name: `blk.0.attn_q.weight`.
    pub name: String,
    /// `[out, in]`, or `[width]` for vectors.
    pub shape: Vec<u32>,
    /// How the file stores it: kernels are chosen, and their bytes counted, by it.
    pub format: Format,
}

impl WeightDecl {
    /// Stored bytes.
    pub fn bytes(&self) -> u64 {
        let row = self.shape.last().copied().unwrap_or(1) as usize;
        let rows: u64 = self
            .shape
            .iter()
            .rev()
            .skip(1)
            .map(|&d| u64::from(d))
            .product();
        rows * self.format.row_bytes(row) as u64
    }
}

/// A place where adapters inject deltas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Canonical name: the weight's name without `.weight` (`blk.0.attn_q`).
    pub name: String,
    /// Input width.
    pub k: u32,
    /// Output width.
    pub n: u32,
    /// Whether it is one of the products of experts, or of heads: kernels of these do not scale inputs for an adapter.
    pub grouped: bool,
}

impl Site {
    /// Name of the output layer's site, whose products are the logits.
    pub const HEAD: &str = "output";

    /// Whether it is the output layer's.
    pub fn is_head(&self) -> bool {
        self.name == Self::HEAD
    }
}

/// What one layer's cache holds per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayer {
    /// Key/value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Where values come from: those of keys take no room.
    pub values: AttentionValues,
}

impl KvLayer {
    /// Lanes of a token's keys.
    pub fn key_lanes(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Lanes of a token's values that are stored beside its keys.
    pub fn value_lanes(&self) -> u32 {
        match self.values {
            AttentionValues::Own => self.key_lanes(),
            AttentionValues::OfKeys(_) => 0,
        }
    }
}

/// A network, independent of any device.
///
/// Nodes are in topological order.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Architecture id.
    pub arch: String,
    /// Symbols; `symbols[0]` is `T`, `symbols[1]` is `L`.
    pub symbols: Vec<Symbol>,
    /// Nodes in topological order.
    pub nodes: Vec<Node>,
    /// Values.
    pub values: Vec<Value>,
    /// Declared weights.
    pub weights: Vec<WeightDecl>,
    /// Adapter sites.
    pub sites: Vec<Site>,
    /// Ids of the sites by name: models of many experts have tens of thousands.
    pub(crate) site_ids: HashMap<String, SiteId>,
    /// Rotary specifications.
    pub ropes: Vec<RopeSpec>,
    /// Cache layout, one entry per layer.
    pub kv: Vec<KvLayer>,
    /// The first result, `[L, vocab]`.
    pub logits: ValueId,
    /// The second: the normed hidden rows that logits are made of, `[L, width]`.
    pub hidden: ValueId,
    /// Longest context the model was made for, in tokens.
    pub context: u32,
    /// Entries of the vocabulary.
    pub vocab: u32,
}

/// A value of no graph.
pub(crate) const NO_VALUE: ValueId = ValueId(u32::MAX);

impl Graph {
    /// A value by id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// Lanes of a hidden row.
    pub fn hidden_width(&self) -> u32 {
        self.width(self.hidden)
    }

    /// The node that defines a value.
    pub fn def(&self, id: ValueId) -> &Node {
        &self.nodes[self.values[id.index()].def.index()]
    }

    /// A declared weight by id.
    pub fn weight(&self, id: WeightId) -> &WeightDecl {
        &self.weights[id.index()]
    }

    /// The weight a value is, where a weight node defines it.
    pub fn as_weight(&self, id: ValueId) -> Option<WeightId> {
        match self.def(id).op {
            Op::Weight(w) => Some(w),
            _ => None,
        }
    }

    /// A site by id.
    pub fn site(&self, id: SiteId) -> &Site {
        &self.sites[id.index()]
    }

    /// A site by its canonical name.
    pub fn site_named(&self, name: &str) -> Option<SiteId> {
        self.site_ids.get(name).copied()
    }

    /// Declares a site.
    pub(crate) fn add_site(&mut self, site: Site) -> SiteId {
        let id = SiteId(self.sites.len() as u32);
        self.site_ids.insert(site.name.clone(), id);
        self.sites.push(site);
        id
    }

    /// A rotary specification by id.
    pub fn rope(&self, id: RopeId) -> &RopeSpec {
        &self.ropes[id.index()]
    }

    /// Whether sequences of two lengths are rotated alike, so that keys of one may stand in the cache of the other.
    pub fn rotates_alike(&self, a: u32, b: u32) -> bool {
        self.ropes.iter().all(|rope| rope.rotates_alike(a, b))
    }

    /// The length that sequences of this length may grow to before keys must be made anew; `None`: any.
    pub fn rotation_limit(&self, length: u32) -> Option<u32> {
        let limits = self.ropes.iter().filter_map(|rope| match rope.scaling {
            RopeScaling::Long { original, .. } if length <= original => Some(original),
            _ => None,
        });
        limits.min()
    }

    /// Width (innermost constant extent) of an activation or vector.
    pub fn width(&self, id: ValueId) -> u32 {
        match self.value(id).shape.last() {
            Some(Dim::Const(n)) => *n,
            _ => 1,
        }
    }
}
