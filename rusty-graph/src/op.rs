//! The operations of the graph and the classes by which passes treat them.

use crate::{RopeId, SiteId, WeightId};

/// A run-time operand of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Token ids, `u32 [T]`.
    Tokens,
}

/// Elementwise functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x Phi(x)`, by erf.
    Gelu,
    /// GELU's tanh approximation.
    GeluTanh,
    /// Hyperbolic tangent.
    Tanh,
    /// Logistic function.
    Sigmoid,
    /// `max(x, 0)`.
    Relu,
    /// `-x`.
    Neg,
}

/// Elementwise functions of two operands of equal width; an operand of width 1, or a weight vector
/// `[width]`, is broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient.
    Div,
}

/// What attention sums by its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionValues {
    /// A third operand, heads as wide as the keys'.
    Own,
    /// The first lanes of each key: latent attention (arXiv 2405.04434), whose cache holds nothing else.
    OfKeys(u32),
}

/// Attention over the paged cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Layer whose cache is read and written.
    pub layer: u32,
    /// Query heads; head `h` reads key/value head `h / (heads / kv_heads)`.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Width of a head's queries and keys.
    pub head_dim: u32,
    /// What is summed.
    pub values: AttentionValues,
    /// Factor on the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// A token sees this many keys, itself included; `None`: all.
    pub window: Option<u32>,
    /// `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
}

impl AttentionSpec {
    /// Width of a head's result.
    pub fn value_dim(&self) -> u32 {
        match self.values {
            AttentionValues::Own => self.head_dim,
            AttentionValues::OfKeys(lanes) => lanes,
        }
    }
}

/// How router logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteScore {
    /// Over all experts.
    Softmax,
    /// Each by itself.
    Sigmoid,
}

/// How a group of experts is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupScore {
    /// By its best expert (arXiv 2405.04434).
    Best,
    /// By the sum of its two best (arXiv 2412.19437).
    BestTwo,
}

/// A choice of groups before that of experts: experts outside of the chosen groups are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteGroups {
    /// Groups, each of as many neighbouring experts.
    pub count: u32,
    /// Groups that a row takes.
    pub used: u32,
    /// By what they are chosen.
    pub score: GroupScore,
}

/// Which experts a row takes, and with which weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteSpec {
    /// Experts to choose from.
    pub experts: u32,
    /// Experts that a row takes: those with the highest scores, the lowest index first among equals.
    pub used: u32,
    /// Scores.
    pub score: RouteScore,
    /// Groups among which experts are chosen first.
    pub groups: Option<RouteGroups>,
    /// Whether the weights of the chosen ones are divided by their sum.
    pub normalize: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// What a node computes. Operands are listed in order; `x` are activations `[T, width]`.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A run-time operand. No operands.
    Input(Input),
    /// A declared weight. No operands.
    Weight(WeightId),
    /// `(table [N, D], ids [T]) -> [T, D]`.
    Gather,
    /// `(x [T, D]) -> [L, D]`: the rows that want logits.
    SelectRows,
    /// `(x [T, K], w [N, K]) -> [T, N]`, the product `x w^T` at an adapter site.
    MatMul {
        /// Where deltas are injected; `None`: nowhere.
        site: Option<SiteId>,
    },
    /// `(logits [T, E]) -> [T, 2 used]`: the indices of the chosen experts, in the order of their scores, then their
    /// weights (arXiv 2401.04088). With a second operand `bias [E]` experts are chosen by score plus bias, and weighted by
    /// score alone (arXiv 2412.19437).
    Route(RouteSpec),
    /// `(x, routes [T, 2 used], w_0 [N, K], .., w_(E-1)) -> `the products of each row with the experts that it takes.
    /// With `combine` false `x [T, K]` gives `[T, used N]`, product by product; with `combine` `x [T, used K]` has an input
    /// for each and gives `[T, N]`, the sum of the products by their weights.
    Experts {
        /// Whether products are summed.
        combine: bool,
        /// The adapter site of the first expert's product; those of the others follow it.
        sites: Option<SiteId>,
    },
    /// `(x [T, H K], w_0 [N, K], .., w_(H-1)) -> [T, H N]`: the product of each head's lanes with a matrix of its own.
    HeadMatMul {
        /// The adapter site of the first head's product; those of the others follow it.
        sites: Option<SiteId>,
    },
    /// `(x [T, G group]) -> [T, G count]`: some lanes of each group.
    Lanes {
        /// Lanes of a group.
        group: u32,
        /// The first that is taken.
        first: u32,
        /// How many are.
        count: u32,
    },
    /// `(a [T, G left], b [T, G right]) -> [T, G (left + right)]`: the lanes of two, group by group.
    Join {
        /// Lanes of a group of the first.
        left: u32,
        /// Lanes of a group of the second.
        right: u32,
    },
    /// `(x) -> x'`.
    Unary(UnaryOp),
    /// `(a, b) -> c`.
    Binary(BinaryOp),
    /// `(x) -> c * x`.
    Scale(f32),
    /// `(x [T, G g], weight [g]) -> x / sqrt(mean(x^2) + eps) * weight`, the mean over each group of `g`
    /// lanes (`group` = `g`; the whole row where `g` is the width). arXiv 1910.07467.
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
        /// Lanes per group.
        group: u32,
    },
    /// `(x [T, G g]) -> exp(x - m) / sum(exp(x - m))`, `m` the maximum, maximum and sum over each group of `g` lanes (`group` =
    /// `g`; the whole row where `g` is the width). Taking the maximum off changes nothing but that no exponential overflows.
    /// arXiv 1805.02867.
    Softmax {
        /// Lanes per group.
        group: u32,
    },
    /// `(x [T, H head_dim]) -> x` with each head's pairs rotated by the row's position.
    Rope {
        /// Frequencies.
        rope: RopeId,
        /// Width of a head.
        head_dim: u32,
    },
    /// `(q [T, H d], k [T, G d], v [T, G d]) -> [T, H d]`: appends k and v to the layer's cache at the rows'
    /// positions, then attends causally within each row's sequence. Without `v` where values are lanes of the keys.
    Attention(AttentionSpec),
}

/// How passes may treat an op: fusion follows classes, never names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpClass {
    /// No operands.
    Source,
    /// Each output lane depends on the same lane of the operands.
    Elementwise,
    /// Each output lane depends on its own and one partner lane of the same row.
    LanePair,
    /// Each output lane depends on a reduction over (a group of) its row.
    RowReduce,
    /// A contraction with a weight.
    Contract,
    /// Moves whole rows.
    RowMove,
    /// Each output lane is one lane of an operand, at another place.
    LaneMove,
    /// Fused with nothing but its tail.
    Opaque,
}

impl Op {
    /// The op's class.
    pub fn class(&self) -> OpClass {
        match self {
            Op::Input(_) | Op::Weight(_) => OpClass::Source,
            Op::Unary(_) | Op::Binary(_) | Op::Scale(_) => OpClass::Elementwise,
            Op::Rope { .. } => OpClass::LanePair,
            Op::RmsNorm { .. } | Op::Softmax { .. } => OpClass::RowReduce,
            Op::MatMul { .. } => OpClass::Contract,
            Op::Route(_) | Op::Experts { .. } | Op::HeadMatMul { .. } => OpClass::Opaque,
            Op::Lanes { .. } | Op::Join { .. } => OpClass::LaneMove,
            Op::Gather | Op::SelectRows => OpClass::RowMove,
            Op::Attention(_) => OpClass::Opaque,
        }
    }
}
