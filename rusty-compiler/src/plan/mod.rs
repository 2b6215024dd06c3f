//! The plan: an ordered list of kernels that says how a graph is computed on one target.
//!
//! A [`Kernel`] is an [`Anchor`], which does the heavy work and yields one or more *results* per row, with
//! bodies held as data: a *prologue* that makes a contraction's input row, and *tails* that consume the
//! anchor's results lane by lane and store them. One kernel may have several tails: merged QKV is one
//! contraction with three parts and three tails; gate and up are two parts under one tail that reads both.
//!
//! Nothing here knows a device or a model's name. Invariants are checked by [`verify`].

pub mod body;
pub mod byte_codes;
pub(crate) mod exclusion;
mod experts;
pub mod held_lanes;
mod implementation;
mod text;
mod tuning;
mod units;
mod verify;

pub use body::{Body, F32, Inst, Reg};
pub use exclusion::Exclusion;
pub use experts::ExpertPart;
pub use implementation::Implementation;
pub(crate) use implementation::{ExpertWay, Sums, Way, Work};
pub use tuning::{AttentionCut, ContractionFamily, Teams, Tuning};
pub use units::Unit;
pub use verify::{Violation, verify};

use crate::slots::SlotShape;
use crate::step::KvFormat;
use rusty_backend::Target;
use rusty_graph::{
    AttentionSpec, Dim, KvLayer, L, RopeId, RopeSpec, RouteSpec, Site, SiteId, Symbol, T,
    WeightDecl, WeightId,
};
use std::ops::RangeInclusive;

/// Index into [`Plan::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanValueId(pub u32);

impl PlanValueId {
    /// The position in its table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What an element of a plan value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// Single precision.
    F32,
    /// Token ids.
    U32,
}

/// An intermediate or a result, `[rows, width]`, rows contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanValue {
    /// For people.
    pub name: String,
    /// `T` or `L`.
    pub rows: Dim,
    /// Elements per row.
    pub width: u32,
    /// Element type.
    pub element: Element,
    /// Byte offset in the arena, set by the memory planner; every offset is a multiple of 256.
    pub offset: u64,
}

/// What a kernel reads beside weights of its anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// An activation.
    Value(PlanValueId),
    /// A vector weight, one element per lane, the same for all rows.
    Vector(WeightId),
    /// A table of `(cos, sin)` pairs, `[T, dims / 2]`, made on the host for each step.
    Rope(RopeId),
}

/// One product of a contraction: `x W^T` with `W [n, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The matrix.
    pub weight: WeightId,
    /// Output width.
    pub n: u32,
    /// Where adapters act.
    pub site: Option<SiteId>,
}

/// The heavy work of a kernel. Operand numbers index [`Kernel::operands`].
#[derive(Clone, Debug, PartialEq)]
pub enum Anchor {
    /// No results: tails read operands only.
    Map,
    /// Result 0: the table's row of the step's token, `[T, width]`.
    Gather {
        /// The table, `[vocab, width]`.
        table: WeightId,
        /// Its row length.
        width: u32,
    },
    /// Result 0: the operand's rows that want an output, `[L, width]`.
    SelectRows {
        /// Operand number of the activation.
        x: u16,
    },
    /// Result `i`: `x W_i^T`, where `x [rows, k]` is what the prologue makes.
    Contract {
        /// Input width.
        k: u32,
        /// Products that share the input.
        parts: Vec<Part>,
    },
    /// The experts that each row takes, stored as `F32 [rows, 2 used]` by a tail with an empty body.
    Route {
        /// Operand number of the router's logits.
        x: u16,
        /// Operand number of a bias on the scores by which experts are chosen.
        bias: Option<u16>,
        /// How they are chosen.
        spec: RouteSpec,
    },
    /// Result `i`: products of part `i` with the experts that each row takes, one behind the other, or their sum by their weights.
    /// Experts that no row takes are not read.
    Experts {
        /// Operand number of the inputs: one for all of a row's experts, or with `combine` one for each.
        x: u16,
        /// Operand number of the routes. `None`: every row takes all of them in order, with an input and a result for each
        /// (heads).
        routes: Option<u16>,
        /// Input width.
        k: u32,
        /// Output width of an expert.
        n: u32,
        /// Experts that a row takes.
        used: u32,
        /// Whether products are summed; there is one part then.
        combine: bool,
        /// Products that share the input (gate and up), with as many experts each.
        parts: Vec<ExpertPart>,
    },
    /// Result 0: attention of the query rows over the layer's pages, after the step's own keys and values
    /// were written.
    Attention {
        /// Operand number of the queries.
        q: u16,
        /// Heads, window, scale.
        spec: AttentionSpec,
    },
    /// The index of the largest lane (the lowest among equals), stored as `U32 [L, 1]` by a tail with an
    /// empty body.
    ArgMax {
        /// Operand number of the activation.
        x: u16,
    },
}

/// Where a tail stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sink {
    /// An activation.
    Value(PlanValueId),
    /// The layer's keys at the rows' positions.
    Key {
        /// Layer.
        layer: u32,
    },
    /// The layer's values at the rows' positions.
    Val {
        /// Layer.
        layer: u32,
    },
}

/// A fused program behind an anchor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tail {
    /// Lanes per row.
    pub width: u32,
    /// The program; its last instruction is stored. Empty for [`Anchor::ArgMax`] and [`Anchor::Route`].
    pub body: Body,
    /// Where the result goes.
    pub sink: Sink,
}

/// How a kernel runs for a range of rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Rows for which it is chosen.
    pub rows: RangeInclusive<u32>,
    /// What runs, from the target's rule table.
    pub implementation: Implementation,
    /// Launches, with that of what a contraction has [made before](Kernel::first), or of what is made of experts' products; one more for
    /// attention that makes its heads in a step whose rows see each other's keys, and another where such a step has both tiles of rows and rows whose keys are split.
    pub dispatches: u32,
}

/// A fused kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// For people: `blk.0.attn_q+attn_k+attn_v`.
    pub name: String,
    /// The heavy work.
    pub anchor: Anchor,
    /// Rows it runs over: `T` or `L`.
    pub rows: Dim,
    /// What bodies and anchor read.
    pub operands: Vec<Operand>,
    /// Makes a contraction's input row; empty for other anchors.
    pub prologue: Body,
    /// What is made of a row before. Attention makes each head for itself: its queries, which nobody else reads, keys
    /// and values; where rows of a step see each other's keys, a launch of its own makes them for all rows first. A contraction makes
    /// the activation that its prologue reads, with a norm in it, which others may read later: each cube of products of a row alone for itself, a
    /// launch of its own where rows are multiplied together.
    pub first: Vec<Tail>,
    /// What happens to the results.
    pub tails: Vec<Tail>,
    /// Implementations by rows, ascending and without gaps.
    pub variants: Vec<Variant>,
    /// What launches of products with experts leave for the one that makes of them what is stored, where there is such a launch.
    pub scratch: Option<PlanValueId>,
}

/// Longest input of which adapters' first factor is made beside the products that need it: some rounds of reads for a cube of 128 units,
/// about as long as those take.
const MOST_SHRUNK_INSIDE: u32 = 4096;

impl Kernel {
    /// Whether adapters may act on it.
    pub fn has_sites(&self) -> bool {
        self.sites().any(|site| site.is_some())
    }

    /// Where adapters act, by the part of a contraction, or by the part and the expert.
    pub fn sites(&self) -> impl Iterator<Item = Option<SiteId>> {
        let (parts, of_experts) = match &self.anchor {
            Anchor::Contract { parts, .. } => (&parts[..], &[][..]),
            Anchor::Experts { parts, .. } => (&[][..], &parts[..]),
            _ => (&[][..], &[][..]),
        };
        let of_experts = of_experts
            .iter()
            .flat_map(|part| (0..part.weights.len()).map(|e| part.site(e)));
        parts.iter().map(|p| p.site).chain(of_experts)
    }

    /// Launches more in a step of `rows` rows with adapters: on GPUs one makes their first factor for all rows and parts of a
    /// contraction, whose own launch applies the second; none where the first cubes of a matrix-vector product's make it, or the launch
    /// that packs inputs. One adds
    /// to the products of experts what adapters change of them, and makes of them what is made; where a launch does so already,
    /// that takes its place.
    pub fn adapter_dispatches(&self, target: &Target, rows: u32) -> u32 {
        let mut variants = self.variants.iter();
        let chosen = variants.find(|v| v.rows.contains(&rows));
        if let Anchor::Experts { .. } = self.anchor {
            let apart = chosen.is_some_and(|v| v.dispatches > 1);
            return u32::from(self.has_sites() && !target.is_cpu() && !apart);
        }
        let of_vectors = chosen.is_some_and(|v| v.implementation.is_of_vectors());
        let packs = chosen.is_some_and(|v| v.implementation.packs());
        let inside = packs || (of_vectors && self.can_shrink_inside(target));
        u32::from(self.has_sites() && !target.is_cpu() && !inside)
    }

    /// Whether matrix-vector products may make adapters' first factor in their own launch: where cubes can wait for the first of them,
    /// those are not long at it, and no tail needs the buffer that counts them.
    pub(crate) fn can_shrink_inside(&self, target: &Target) -> bool {
        let Anchor::Contract { k, .. } = self.anchor else {
            return false;
        };
        let stores = |t: &Tail| !matches!(t.sink, Sink::Value(_));
        let waits = target.orders_groups && target.starts_in_order;
        waits && k <= MOST_SHRUNK_INSIDE && !self.tails.iter().any(stores)
    }
}

/// A compiled network for one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Architecture id.
    pub arch: String,
    /// What it was made for.
    pub target: Target,
    /// Symbols with maxima; `symbols[0]` is `T`, `symbols[1]` is `L`.
    pub symbols: Vec<Symbol>,
    /// Kernels in order of execution.
    pub kernels: Vec<Kernel>,
    /// Values.
    pub values: Vec<PlanValue>,
    /// Declared weights.
    pub weights: Vec<WeightDecl>,
    /// Adapter sites.
    pub sites: Vec<Site>,
    /// Rotary specifications.
    pub ropes: Vec<RopeSpec>,
    /// Cache layout per layer.
    pub kv: Vec<KvLayer>,
    /// Logits, `F32 [L, vocab]`.
    pub logits: PlanValueId,
    /// Normed hidden rows, `F32 [L, width]`.
    pub hidden: PlanValueId,
    /// Most likely tokens, `U32 [L, 1]`.
    pub argmax: PlanValueId,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Kernels of the plan before fusion.
    pub unfused_kernels: u32,
    /// Longest context the model was made for.
    pub context: u32,
    /// Entries of the vocabulary.
    pub vocab: u32,
    /// What was chosen among kernels.
    pub tuning: Tuning,
    /// What is not chosen, because it went wrong.
    pub excluded: Vec<Exclusion>,
}

impl Plan {
    /// Whether a kernel makes nothing but hidden rows for callers: it is launched where a row wants them.
    pub fn is_for_hidden(&self, kernel: &Kernel) -> bool {
        let read = Operand::Value(self.hidden);
        let stores = |t: &Tail| t.sink == Sink::Value(self.hidden);
        kernel.tails.iter().all(stores) && !self.kernels.iter().any(|k| k.operands.contains(&read))
    }

    /// A value by id.
    pub fn value(&self, id: PlanValueId) -> &PlanValue {
        &self.values[id.index()]
    }

    /// What an adapter must fit.
    pub fn slot_shape(&self) -> SlotShape<'_> {
        SlotShape {
            sites: &self.sites,
            vocab: self.vocab,
            width: self.value(self.hidden).width,
            kv: &self.kv,
        }
    }

    /// The largest number of rows a dimension may have.
    pub fn max_rows(&self, rows: Dim) -> u32 {
        match rows {
            Dim::Const(n) => n,
            Dim::Sym(s) => self.symbols[s.index()].max,
        }
    }

    /// Largest number of rows of a step.
    pub fn row_budget(&self) -> usize {
        self.max_rows(T) as usize
    }

    /// Largest number of rows of a step that want an output.
    pub fn output_budget(&self) -> usize {
        self.max_rows(L) as usize
    }

    /// Bytes of keys and values per token in a cache of this format.
    pub fn kv_bytes_per_token(&self, format: KvFormat) -> u64 {
        let lanes = |lanes: u32| format.bytes(u64::from(lanes));
        let layers = self.kv.iter();
        layers
            .map(|k| lanes(k.key_lanes()) + lanes(k.value_lanes()))
            .sum()
    }

    /// Bytes of a value at its symbols' maxima.
    pub fn bytes(&self, id: PlanValueId) -> u64 {
        let v = self.value(id);
        u64::from(self.max_rows(v.rows)) * u64::from(v.width) * 4
    }
}
