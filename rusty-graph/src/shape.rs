//! Shape inference: the one place that knows what each op makes of its operands.
//!
//! Activations are `[rows, width]` with `rows` a symbol or a constant, token ids `[T]`, weights what their
//! declaration says. The builder asks before it adds a node, the verifier asks again for every node.

use crate::{
    AttentionSpec, AttentionValues, Dim, Graph, Op, RouteGroups, RouteSpec, SymId, Symbol, ValueId,
};

/// Rows of a step.
pub const T: Dim = Dim::Sym(SymId(0));
/// Rows that want logits.
pub const L: Dim = Dim::Sym(SymId(1));

/// Default bounds: 512 rows in a step, 64 of them with logits.
pub fn default_symbols() -> Vec<Symbol> {
    let symbol = |name: &str, max| Symbol {
        name: name.into(),
        max,
    };
    vec![symbol("T", 512), symbol("L", 64)]
}

/// Infers the shape of `op`'s result. `Err` states which rule the operands break.
pub(crate) fn infer(graph: &Graph, op: &Op, inputs: &[ValueId]) -> Result<Vec<Dim>, String> {
    arity(op, inputs)?;
    if let Some(v) = inputs.iter().find(|v| v.index() >= graph.values.len()) {
        return Err(format!("reads {v}, which is not defined"));
    }
    let operands = Operands { graph, inputs };
    match op {
        Op::Input(crate::Input::Tokens) => Ok(vec![T]),
        Op::Weight(w) => match graph.weights.get(w.index()) {
            Some(decl) => Ok(decl.shape.iter().map(|&d| Dim::Const(d)).collect()),
            None => Err(format!("weight {w} is not declared")),
        },
        Op::Gather => operands.gather(),
        Op::SelectRows => {
            let (rows, width) = operands.activation(0)?;
            (rows == T)
                .then(|| vec![L, Dim::Const(width)])
                .ok_or("selects from rows that are not T".into())
        }
        Op::MatMul { site } => {
            let (rows, k) = operands.activation(0)?;
            let (n, wk) = operands.matrix(1)?;
            if k != wk {
                return Err(format!("x has width {k}, but the weight is [{n}, {wk}]"));
            }
            if site.is_some_and(|s| s.index() >= graph.sites.len()) {
                return Err("names a site that is not declared".into());
            }
            Ok(vec![rows, Dim::Const(n)])
        }
        Op::Route(spec) => operands.route(spec),
        Op::Experts { combine, .. } => operands.experts(*combine),
        Op::HeadMatMul { .. } => operands.head_matmul(),
        Op::Lanes {
            group,
            first,
            count,
        } => operands.lanes(*group, *first, *count),
        Op::Join { left, right } => operands.join(*left, *right),
        Op::Unary(_) => operands.same(0),
        Op::Scale(c) if c.is_finite() => operands.same(0),
        Op::Scale(c) => Err(format!("scales by {c}")),
        Op::Binary(_) => operands.binary(),
        Op::RmsNorm { eps, group } => operands.rms_norm(*eps, *group),
        Op::Softmax { group } => operands.groups(*group),
        Op::Rope { rope, head_dim } => operands.rope(rope.index(), *head_dim),
        Op::Attention(spec) => operands.attention(spec),
    }
}

/// Most experts that a row may take: more would be a file's mistake, and routing costs their square.
const MOST_USED: u32 = 64;

fn arity(op: &Op, inputs: &[ValueId]) -> Result<(), String> {
    let wanted = match op {
        // As many weights as there are experts.
        Op::Experts { .. } => inputs.len().max(3),
        Op::HeadMatMul { .. } => inputs.len().max(2),
        Op::Route(_) => inputs.len().clamp(1, 2),
        Op::Input(_) | Op::Weight(_) => 0,
        Op::SelectRows | Op::Unary(_) | Op::Scale(_) => 1,
        Op::Softmax { .. } | Op::Rope { .. } | Op::Lanes { .. } => 1,
        Op::Gather | Op::MatMul { .. } | Op::Binary(_) | Op::RmsNorm { .. } | Op::Join { .. } => 2,
        Op::Attention(spec) => match spec.values {
            AttentionValues::Own => 3,
            AttentionValues::OfKeys(_) => 2,
        },
    };
    if inputs.len() == wanted {
        Ok(())
    } else {
        Err(format!("has {} operands; needed: {wanted}", inputs.len()))
    }
}

struct Operands<'a> {
    graph: &'a Graph,
    inputs: &'a [ValueId],
}

impl Operands<'_> {
    fn shape(&self, i: usize) -> &[Dim] {
        &self.graph.value(self.inputs[i]).shape
    }

    fn is_weight(&self, i: usize) -> bool {
        self.graph.as_weight(self.inputs[i]).is_some()
    }

    /// Rows and width of an activation.
    fn activation(&self, i: usize) -> Result<(Dim, u32), String> {
        match self.shape(i) {
            [rows, Dim::Const(width)] if !self.is_weight(i) => Ok((*rows, *width)),
            other => Err(format!(
                "operand {i} is no activation (its shape is {other:?})"
            )),
        }
    }

    fn matrix(&self, i: usize) -> Result<(u32, u32), String> {
        match self.shape(i) {
            [Dim::Const(n), Dim::Const(k)] if self.is_weight(i) => Ok((*n, *k)),
            other => Err(format!(
                "operand {i} is no weight matrix (its shape is {other:?})"
            )),
        }
    }

    fn vector(&self, i: usize) -> Result<u32, String> {
        match self.shape(i) {
            [Dim::Const(n)] if self.is_weight(i) => Ok(*n),
            other => Err(format!(
                "operand {i} is no weight vector (its shape is {other:?})"
            )),
        }
    }

    fn same(&self, i: usize) -> Result<Vec<Dim>, String> {
        let (rows, width) = self.activation(i)?;
        Ok(vec![rows, Dim::Const(width)])
    }

    fn gather(&self) -> Result<Vec<Dim>, String> {
        let (_, width) = self.matrix(0)?;
        match self.shape(1) {
            [rows @ Dim::Sym(_)] => Ok(vec![*rows, Dim::Const(width)]),
            other => Err(format!(
                "operand 1 is no list of ids (its shape is {other:?})"
            )),
        }
    }

    fn binary(&self) -> Result<Vec<Dim>, String> {
        let (a, b) = match (self.is_weight(0), self.is_weight(1)) {
            (true, true) => return Err("both operands are weights".into()),
            (false, true) => (self.activation(0)?, (None, self.vector(1)?)),
            (true, false) => (self.activation(1)?, (None, self.vector(0)?)),
            (false, false) => {
                let (rows, width) = self.activation(1)?;
                (self.activation(0)?, (Some(rows), width))
            }
        };
        if b.0.is_some_and(|rows| rows != a.0) {
            return Err(format!("operands have rows {:?} and {:?}", a.0, b.0));
        }
        match (a.1, b.1) {
            (x, y) if x == y || y == 1 => Ok(vec![a.0, Dim::Const(x)]),
            (1, y) => Ok(vec![a.0, Dim::Const(y)]),
            (x, y) => Err(format!("operands have widths {x} and {y}")),
        }
    }

    fn route(&self, spec: &RouteSpec) -> Result<Vec<Dim>, String> {
        let (rows, width) = self.activation(0)?;
        let RouteSpec {
            experts,
            used,
            scale,
            ..
        } = *spec;
        if width != experts || used == 0 || used > experts.min(MOST_USED) || experts > 1 << 16 {
            return Err(format!(
                "chooses {used} of {experts} experts by {width} logits"
            ));
        }
        if !(scale.is_finite() && scale > 0.0) {
            return Err(format!("scales weights by {scale}"));
        }
        if let Some(groups) = spec.groups {
            let RouteGroups {
                count, used: taken, ..
            } = groups;
            let size = experts.checked_div(count).unwrap_or(0);
            if size * count != experts || taken == 0 || taken > count || taken * size < used {
                return Err(format!(
                    "chooses {used} of {experts} experts in {taken} of {count} groups"
                ));
            }
        }
        if self.inputs.len() == 2 && self.vector(1)? != experts {
            return Err(format!("the bias is not one of {experts} experts"));
        }
        Ok(vec![rows, Dim::Const(2 * used)])
    }

    fn head_matmul(&self) -> Result<Vec<Dim>, String> {
        let (rows, width) = self.activation(0)?;
        let heads = self.inputs.len() as u32 - 1;
        let (n, k) = self.matrix(1)?;
        for i in 2..self.inputs.len() {
            if self.matrix(i)? != (n, k) {
                return Err(format!("the matrix of head {} is no [{n}, {k}]", i - 1));
            }
        }
        match (heads.checked_mul(k) == Some(width), heads.checked_mul(n)) {
            (true, Some(output)) => Ok(vec![rows, Dim::Const(output)]),
            _ => Err(format!(
                "x has width {width}, not {heads} heads of {k} lanes"
            )),
        }
    }

    fn lanes(&self, group: u32, first: u32, count: u32) -> Result<Vec<Dim>, String> {
        let (rows, width) = self.activation(0)?;
        let inside = first.checked_add(count).is_some_and(|end| end <= group);
        if count == 0 || !inside || width % group != 0 {
            return Err(format!(
                "takes {count} lanes from {first} of groups of {group} of {width}"
            ));
        }
        Ok(vec![rows, Dim::Const(width / group * count)])
    }

    fn join(&self, left: u32, right: u32) -> Result<Vec<Dim>, String> {
        let ((rows, a), (others, b)) = (self.activation(0)?, self.activation(1)?);
        let groups = a.checked_div(left).unwrap_or(0);
        let fits = groups > 0
            && groups * left == a
            && groups.checked_mul(right) == Some(b)
            && right > 0
            && rows == others;
        match a.checked_add(b).filter(|_| fits) {
            Some(width) => Ok(vec![rows, Dim::Const(width)]),
            None => Err(format!(
                "joins {left} lanes of {a} and {right} of {b}, rows {rows:?} and {others:?}"
            )),
        }
    }

    fn experts(&self, combine: bool) -> Result<Vec<Dim>, String> {
        let ((rows, width), (routed, pairs)) = (self.activation(0)?, self.activation(1)?);
        if rows != routed || pairs == 0 || pairs % 2 != 0 {
            return Err(format!(
                "rows {rows:?} with {pairs} lanes of routes for {routed:?}"
            ));
        }
        let used = pairs / 2;
        let known = match self.graph.def(self.inputs[1]).op {
            Op::Route(spec) => spec.experts as usize == self.inputs.len() - 2,
            _ => false,
        };
        if !known {
            return Err("operand 1 is no choice among these experts".into());
        }
        let (n, k) = self.matrix(2)?;
        for i in 3..self.inputs.len() {
            if self.matrix(i)? != (n, k) {
                return Err(format!("expert {} is no [{n}, {k}]", i - 2));
            }
        }
        let (input, output) = match combine {
            true => (used.checked_mul(k), Some(n)),
            false => (Some(k), used.checked_mul(n)),
        };
        match (input == Some(width), output) {
            (true, Some(output)) => Ok(vec![rows, Dim::Const(output)]),
            _ => Err(format!(
                "x has width {width}, experts are [{n}, {k}], {used} a row"
            )),
        }
    }

    /// The shape of operand 0, whose rows are whole groups of lanes.
    fn groups(&self, group: u32) -> Result<Vec<Dim>, String> {
        let (rows, width) = self.activation(0)?;
        if group == 0 || width % group != 0 {
            return Err(format!(
                "groups of {group} lanes do not divide the width {width}"
            ));
        }
        Ok(vec![rows, Dim::Const(width)])
    }

    fn rms_norm(&self, eps: f32, group: u32) -> Result<Vec<Dim>, String> {
        let weight = self.vector(1)?;
        let shape = self.groups(group)?;
        if weight != group {
            return Err(format!("the weight has {weight} lanes, a group {group}"));
        }
        if !(eps.is_finite() && eps >= 0.0) {
            return Err(format!("epsilon is {eps}"));
        }
        Ok(shape)
    }

    fn rope(&self, rope: usize, head_dim: u32) -> Result<Vec<Dim>, String> {
        let (rows, width) = self.activation(0)?;
        let Some(spec) = self.graph.ropes.get(rope) else {
            return Err(format!("rope{rope} is not declared"));
        };
        if head_dim == 0 || width % head_dim != 0 {
            return Err(format!(
                "heads of {head_dim} lanes do not divide the width {width}"
            ));
        }
        if spec.dims > head_dim {
            return Err(format!(
                "rotates {} lanes of heads of {head_dim}",
                spec.dims
            ));
        }
        if rows != T {
            return Err("rotates rows that have no position (rows are not T)".into());
        }
        Ok(vec![rows, Dim::Const(width)])
    }

    fn attention(&self, spec: &AttentionSpec) -> Result<Vec<Dim>, String> {
        let widths = (0..self.inputs.len())
            .map(|i| self.activation(i))
            .collect::<Result<Vec<_>, _>>()?;
        if spec.kv_heads == 0 || spec.heads == 0 || !spec.heads.is_multiple_of(spec.kv_heads) {
            return Err(format!(
                "{} query heads are no multiple of {} key heads",
                spec.heads, spec.kv_heads
            ));
        }
        let needed = [spec.heads, spec.kv_heads, spec.kv_heads];
        for (name, ((rows, width), heads)) in ["q", "k", "v"].iter().zip(widths.iter().zip(needed))
        {
            if heads.checked_mul(spec.head_dim) != Some(*width) {
                let head_dim = spec.head_dim;
                return Err(format!(
                    "{name} has width {width}, not {heads} heads of {head_dim}"
                ));
            }
            if *rows != T {
                return Err(format!("{name} has rows that are not T"));
            }
        }
        if !spec.scale.is_finite() || spec.window == Some(0) {
            return Err(format!("scale {} or window {:?}", spec.scale, spec.window));
        }
        if spec.softcap.is_some_and(|c| !(c.is_finite() && c > 0.0)) {
            return Err(format!("softcap {:?}", spec.softcap));
        }
        if spec.value_dim() == 0 || spec.value_dim() > spec.head_dim {
            return Err(format!(
                "values are {} lanes of keys of {}",
                spec.value_dim(),
                spec.head_dim
            ));
        }
        Ok(vec![T, Dim::Const(spec.heads * spec.value_dim())])
    }
}
