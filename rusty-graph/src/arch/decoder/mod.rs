//! The decoder that the Llama family and those after it share, as a description that an architecture fills in.
//!
//! Per layer: norm, q/k/v products (with bias, with norm per head), rotation, attention, output product,
//! residual; norm, gated feed-forward (or experts), residual. Either half may norm its result before the residual,
//! also instead of its input.
//! Queries, keys and values may be [latent](Latent) instead. Rows that want logits are selected after the last layer, so the
//! last norm and the head see only those.

mod assembly;
mod latent;
mod read;

use rusty_loader::ModelFile;

use crate::{Graph, GraphBuilder, Result, RopeSpec, RouteSpec, UnaryOp};
use assembly::Assembly;

/// When a product has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// Where the file has the tensor.
    IfPresent,
    /// Always; a file without it is incomplete.
    Required,
}

/// Norms of queries and keys before the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// There are none.
    None,
    /// Over each head, all with one weight.
    Heads,
    /// Over all heads at once.
    Row,
}

/// Layers whose tokens see a window of keys.
#[derive(Clone, Debug)]
pub struct Sliding {
    /// Keys a token sees, itself included.
    pub window: u32,
    /// Which layers slide.
    pub layers: Vec<bool>,
    /// Their rotation.
    pub rope: RopeSpec,
}

/// Feed-forwards of which each token takes some.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// Inner width of each.
    pub ffn: u32,
    /// How they are chosen.
    pub route: RouteSpec,
    /// Inner width of the experts that every token takes, together; 0: there are none.
    pub shared: u32,
}

/// Attention whose keys and values are made from one narrow row per token, which is what the cache holds (MLA, arXiv
/// 2405.04434): queries are brought to that row's width instead of keys to theirs.
#[derive(Clone, Copy, Debug)]
pub struct Latent {
    /// Width of the row that queries are made from; `None`: they are made from the hidden row.
    pub query_rank: Option<u32>,
    /// Width of the row that keys and values are made from.
    pub rank: u32,
    /// Lanes of a head's queries and keys that are not rotated.
    pub plain: u32,
    /// Those that are; all heads share such keys.
    pub rotated: u32,
    /// Width of a head's values.
    pub value: u32,
}

/// A decoder, see the module head.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// Blocks.
    pub layers: u32,
    /// Hidden width.
    pub width: u32,
    /// Inner width of the feed-forward.
    pub ffn: u32,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Width of a head; need not be `width / heads`.
    pub head_dim: u32,
    /// Epsilon of all norms.
    pub eps: f32,
    /// Activation of the gate.
    pub act: UnaryOp,
    /// Rotation of queries and keys.
    pub rope: RopeSpec,
    /// Layers that see less than everything.
    pub sliding: Option<Sliding>,
    /// Factor on the embeddings.
    pub embedding_scale: f32,
    /// Factor on the results of attention and of the feed-forward.
    pub residual_scale: f32,
    /// Divisor of logits.
    pub logit_divisor: f32,
    /// Factor on attention's scores.
    pub query_scale: f32,
    /// Cap on attention's scores, `cap * tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// The same on logits.
    pub logit_cap: Option<f32>,
    /// Experts of the layers whose files have a router; the others have one feed-forward.
    pub experts: Option<Experts>,
    /// Whether attention and the feed-forward read a normed row.
    pub pre_norms: bool,
    /// Whether the results of attention and of the feed-forward are normed before the residual.
    pub post_norms: bool,
    /// What stands in for queries, keys and values of each head.
    pub latent: Option<Latent>,
    /// Norms of queries and keys before the rotation.
    pub qk_norm: QkNorm,
    /// Biases of the query, key and value products. Those of the others follow the file.
    pub qkv_bias: Biases,
    /// Trained context in tokens.
    pub context: u32,
    /// Entries of the vocabulary.
    pub vocab: u32,
}

impl Decoder {
    /// Builds the graph, taking each weight's format from the file and checking its shape.
    ///
    /// # Errors
    /// [`crate::Error::Tensor`] where a weight is missing or has another shape.
    pub fn build(&self, file: &dyn ModelFile) -> Result<Graph> {
        let mut builder = GraphBuilder::new(file.arch(), self.context, self.vocab);
        let (logits, hidden) = Assembly::new(self, file, &mut builder).network()?;
        builder.finish(logits, hidden)
    }
}
