//! The text form of a graph: one line per symbol, cache layer, rotary specification, weight, site and node.
//!
//! ```text
//! graph qwen3 context=1024 vocab=2048
//! symbol T max=512
//! symbol L max=64
//! kv kv_heads=2 head_dim=64
//! rope rope0 dims=64 base=1000000.0 layout=half scaling=none
//! weight w0 token_embd.weight [2048,256] q8_0
//! site site0 blk.0.attn_q 256 -> 256
//! %0 tokens [T] = input tokens
//! %2 embedding [T,256] = gather %1 %0
//! output %111 %109
//! ```
//!
//! Numbers are printed so that reading them gives the same bits; [`Graph::parse`] of a valid graph's text is
//! that graph. Blank lines and lines that start with `#` are skipped.

use std::fmt::{Display, Formatter, Result};

use crate::{
    AttentionValues, BinaryOp, Dim, Graph, GroupScore, Input, Op, RopeLayout, RopeScaling,
    RopeSpec, RouteScore, SiteId, Symbol, UnaryOp, Value,
};

/// Elementwise functions of one operand by their word.
pub(crate) const UNARY: [(UnaryOp, &str); 7] = [
    (UnaryOp::Silu, "silu"),
    (UnaryOp::Gelu, "gelu"),
    (UnaryOp::GeluTanh, "gelu_tanh"),
    (UnaryOp::Tanh, "tanh"),
    (UnaryOp::Sigmoid, "sigmoid"),
    (UnaryOp::Relu, "relu"),
    (UnaryOp::Neg, "neg"),
];

/// Elementwise functions of two operands by their word.
pub(crate) const BINARY: [(BinaryOp, &str); 4] = [
    (BinaryOp::Add, "add"),
    (BinaryOp::Sub, "sub"),
    (BinaryOp::Mul, "mul"),
    (BinaryOp::Div, "div"),
];

/// Scores of a group of experts by their word.
pub(crate) const GROUP_SCORES: [(GroupScore, &str); 2] = [
    (GroupScore::Best, "best"),
    (GroupScore::BestTwo, "best_two"),
];

/// The word of an op of one of the tables above.
fn word<T: PartialEq>(table: &[(T, &'static str)], op: &T) -> &'static str {
    table.iter().find(|(o, _)| o == op).map_or("?", |(_, w)| w)
}

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(
            f,
            "graph {} context={} vocab={}",
            self.arch, self.context, self.vocab
        )?;
        for s in &self.symbols {
            writeln!(f, "symbol {} max={}", s.name, s.max)?;
        }
        for kv in &self.kv {
            write!(f, "kv kv_heads={} head_dim={}", kv.kv_heads, kv.head_dim)?;
            values(f, kv.values)?;
            writeln!(f)?;
        }
        for (i, spec) in self.ropes.iter().enumerate() {
            write!(f, "rope rope{i}")?;
            rope(f, spec)?;
        }
        for (i, w) in self.weights.iter().enumerate() {
            let shape: Vec<_> = w.shape.iter().map(u32::to_string).collect();
            let format = w.format.name();
            writeln!(f, "weight w{i} {} [{}] {format}", w.name, shape.join(","))?;
        }
        for (i, s) in self.sites.iter().enumerate() {
            let grouped = if s.grouped { " grouped=true" } else { "" };
            writeln!(f, "site site{i} {} {} -> {}{grouped}", s.name, s.k, s.n)?;
        }
        for node in &self.nodes {
            let value = self.value(node.output);
            write!(f, "{} {} ", node.output, value.name)?;
            shape(f, value, &self.symbols)?;
            f.write_str(" =")?;
            op(f, &node.op)?;
            for input in &node.inputs {
                write!(f, " {input}")?;
            }
            attributes(f, &node.op)?;
            writeln!(f)?;
        }
        writeln!(f, "output {} {}", self.logits, self.hidden)
    }
}

fn shape(f: &mut Formatter<'_>, value: &Value, symbols: &[Symbol]) -> Result {
    f.write_str("[")?;
    for (i, dim) in value.shape.iter().enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        match dim {
            Dim::Const(n) => write!(f, "{n}")?,
            Dim::Sym(s) => match symbols.get(s.index()) {
                Some(symbol) => f.write_str(&symbol.name)?,
                None => write!(f, "{s}")?,
            },
        }
    }
    f.write_str("]")
}

fn op(f: &mut Formatter<'_>, op: &Op) -> Result {
    match op {
        Op::Input(Input::Tokens) => f.write_str(" input tokens"),
        Op::Weight(w) => write!(f, " weight {w}"),
        Op::Gather => f.write_str(" gather"),
        Op::SelectRows => f.write_str(" select_rows"),
        Op::MatMul { .. } => f.write_str(" matmul"),
        Op::Route(_) => f.write_str(" route"),
        Op::Experts { .. } => f.write_str(" experts"),
        Op::HeadMatMul { .. } => f.write_str(" head_matmul"),
        Op::Lanes { .. } => f.write_str(" lanes"),
        Op::Join { .. } => f.write_str(" join"),
        Op::Unary(op) => write!(f, " {}", word(&UNARY, op)),
        Op::Binary(op) => write!(f, " {}", word(&BINARY, op)),
        Op::Scale(_) => f.write_str(" scale"),
        Op::RmsNorm { .. } => f.write_str(" rms_norm"),
        Op::Softmax { .. } => f.write_str(" softmax"),
        Op::Rope { .. } => f.write_str(" rope"),
        Op::Attention(_) => f.write_str(" attention"),
    }
}

/// The first site of products that have one each.
fn first_site(f: &mut Formatter<'_>, sites: Option<SiteId>) -> Result {
    sites.map_or(Ok(()), |first| write!(f, " sites={first}"))
}

fn attributes(f: &mut Formatter<'_>, op: &Op) -> Result {
    match op {
        Op::MatMul { site: Some(site) } => write!(f, " site={site}"),
        Op::Route(r) => {
            let score = match r.score {
                RouteScore::Softmax => "softmax",
                RouteScore::Sigmoid => "sigmoid",
            };
            write!(
                f,
                " experts={} used={} score={score} normalize={} scale={:?}",
                r.experts, r.used, r.normalize, r.scale
            )?;
            let Some(groups) = r.groups else {
                return Ok(());
            };
            let score = word(&GROUP_SCORES, &groups.score);
            let (count, used) = (groups.count, groups.used);
            write!(f, " groups={count} used_groups={used} group_score={score}")
        }
        Op::Experts { combine, sites } => {
            write!(f, " combine={combine}")?;
            first_site(f, *sites)
        }
        Op::HeadMatMul { sites } => first_site(f, *sites),
        Op::Lanes {
            group,
            first,
            count,
        } => write!(f, " group={group} first={first} count={count}"),
        Op::Join { left, right } => write!(f, " left={left} right={right}"),
        Op::Scale(c) => write!(f, " by={c:?}"),
        Op::RmsNorm { eps, group } => write!(f, " eps={eps:?} group={group}"),
        Op::Softmax { group } => write!(f, " group={group}"),
        Op::Rope { rope, head_dim } => write!(f, " spec={rope} head_dim={head_dim}"),
        Op::Attention(a) => {
            write!(
                f,
                " layer={} heads={} kv_heads={} head_dim={} scale={:?}",
                a.layer, a.heads, a.kv_heads, a.head_dim, a.scale
            )?;
            values(f, a.values)?;
            if let Some(window) = a.window {
                write!(f, " window={window}")?;
            }
            match a.softcap {
                Some(cap) => write!(f, " softcap={cap:?}"),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Nothing where attention has values of its own.
fn values(f: &mut Formatter<'_>, values: AttentionValues) -> Result {
    match values {
        AttentionValues::Own => Ok(()),
        AttentionValues::OfKeys(lanes) => write!(f, " values_of_keys={lanes}"),
    }
}

fn rope(f: &mut Formatter<'_>, spec: &RopeSpec) -> Result {
    let layout = match spec.layout {
        RopeLayout::Half => "half",
        RopeLayout::Interleaved => "interleaved",
    };
    let (dims, base) = (spec.dims, spec.base);
    write!(f, " dims={dims} base={base:?} layout={layout} scaling=")?;
    match &spec.scaling {
        RopeScaling::None => writeln!(f, "none"),
        RopeScaling::Linear { factor } => writeln!(f, "linear factor={factor:?}"),
        RopeScaling::Dynamic { factor, original } => {
            writeln!(f, "dynamic factor={factor:?} original={original}")
        }
        RopeScaling::Llama3 {
            factor,
            low_freq,
            high_freq,
            original,
        } => writeln!(
            f,
            "llama3 factor={factor:?} low_freq={low_freq:?} high_freq={high_freq:?} original={original}"
        ),
        RopeScaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            attn_factor,
            truncate,
        } => writeln!(
            f,
            "yarn factor={factor:?} original={original} beta_fast={beta_fast:?} beta_slow={beta_slow:?} \
             attn_factor={attn_factor:?} truncate={truncate}"
        ),
        RopeScaling::Divisors(divisors) => {
            writeln!(f, "divisors list={}", numbers(divisors))
        }
        RopeScaling::Long {
            short,
            long,
            original,
            attn_factor,
        } => writeln!(
            f,
            "long short={} long={} original={original} attn_factor={attn_factor:?}",
            numbers(short),
            numbers(long)
        ),
    }
}

fn numbers(list: &[f32]) -> String {
    let list: Vec<_> = list.iter().map(|d| format!("{d:?}")).collect();
    list.join(",")
}
