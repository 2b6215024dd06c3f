//! Lowering: one kernel per graph op, nothing fused. The kernel count of this plan is what fusion is measured
//! against.

use crate::plan::{
    Anchor, Body, Element, ExpertPart, F32, Inst, Kernel, Operand, Part, Plan, PlanValue,
    PlanValueId, Sink, Tail, Tuning,
};
use crate::{Error, Result};
use rusty_backend::Target;
use rusty_graph::{AttentionSpec, Dim, Graph, L, Node, Op, RouteSpec, SiteId, ValueId, WeightId};
use std::collections::HashMap;

/// Lowers a verified graph.
pub(super) fn lower(graph: &Graph, target: &Target) -> Result<Plan> {
    let mut lowering = Lowering {
        graph,
        values: Vec::new(),
        kernels: Vec::new(),
        by_value: HashMap::new(),
    };
    for node in &graph.nodes {
        lowering.node(node)?;
    }
    let logits = lowering.activation(graph.logits)?;
    let hidden = lowering.activation(graph.hidden)?;
    let argmax = lowering.argmax(logits);
    Ok(Plan {
        arch: graph.arch.clone(),
        target: target.clone(),
        tuning: Tuning::guess(target),
        excluded: Vec::new(),
        symbols: graph.symbols.clone(),
        unfused_kernels: lowering.kernels.len() as u32,
        kernels: lowering.kernels,
        values: lowering.values,
        weights: graph.weights.clone(),
        sites: graph.sites.clone(),
        ropes: graph.ropes.clone(),
        kv: graph.kv.clone(),
        logits,
        hidden,
        argmax,
        arena_bytes: 0,
        context: graph.context,
        vocab: graph.vocab,
    })
}

struct Lowering<'a> {
    graph: &'a Graph,
    values: Vec<PlanValue>,
    kernels: Vec<Kernel>,
    by_value: HashMap<ValueId, PlanValueId>,
}

impl Lowering<'_> {
    /// Lowers one op to the kernels that compute it.
    fn node(&mut self, node: &Node) -> Result<()> {
        match &node.op {
            Op::Input(_) | Op::Weight(_) => {}
            Op::Gather => {
                let table = self.weight(node, 0)?;
                let width = self.graph.width(node.output);
                self.push(node, Anchor::Gather { table, width }, vec![]);
            }
            Op::SelectRows => {
                let x = self.activation(node.inputs[0])?;
                self.push(node, Anchor::SelectRows { x: 0 }, vec![Operand::Value(x)]);
            }
            Op::MatMul { site } => self.matmul(node, *site)?,
            Op::Route(spec) => self.route(node, *spec)?,
            Op::Experts { combine, sites } => self.experts(node, *combine, *sites)?,
            Op::HeadMatMul { sites } => self.head_matmul(node, *sites)?,
            Op::Attention(spec) => self.attention(node, *spec)?,
            Op::Lanes { .. }
            | Op::Join { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Scale(_)
            | Op::RmsNorm { .. }
            | Op::Softmax { .. }
            | Op::Rope { .. } => {
                let (operands, body) = self.map_body(node)?;
                self.push(node, Anchor::Map, operands).tails[0].body = body;
            }
        }
        Ok(())
    }

    /// A linear product.
    fn matmul(&mut self, node: &Node, site: Option<SiteId>) -> Result<()> {
        let x = self.activation(node.inputs[0])?;
        let part = Part {
            weight: self.weight(node, 1)?,
            n: self.graph.width(node.output),
            site,
        };
        let anchor = Anchor::Contract {
            k: self.graph.width(node.inputs[0]),
            parts: vec![part],
        };
        self.push(node, anchor, vec![Operand::Value(x)]).prologue = Body::identity(Inst::Load(0));
        Ok(())
    }

    /// The choice of experts.
    fn route(&mut self, node: &Node, spec: RouteSpec) -> Result<()> {
        let mut operands = vec![Operand::Value(self.activation(node.inputs[0])?)];
        let biased = node.inputs.len() > 1;
        if biased {
            operands.push(Operand::Vector(self.weight(node, 1)?));
        }
        let anchor = Anchor::Route {
            x: 0,
            bias: biased.then_some(1),
            spec,
        };
        self.push(node, anchor, operands).tails[0].body = Body::default();
        Ok(())
    }

    /// Products with the experts that each row takes.
    fn experts(&mut self, node: &Node, combine: bool, sites: Option<SiteId>) -> Result<()> {
        let (x, routes) = (node.inputs[0], node.inputs[1]);
        let used = self.graph.width(routes) / 2;
        let weights = (2..node.inputs.len()).map(|i| self.weight(node, i));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let (inputs, outputs) = (self.graph.width(x), self.graph.width(node.output));
        let anchor = Anchor::Experts {
            x: 0,
            routes: Some(1),
            k: if combine { inputs / used } else { inputs },
            n: if combine { outputs } else { outputs / used },
            used,
            combine,
            parts: vec![ExpertPart { weights, sites }],
        };
        let operands = [x, routes].map(|v| Ok(Operand::Value(self.activation(v)?)));
        let operands = operands.into_iter().collect::<Result<Vec<_>>>()?;
        self.push(node, anchor, operands);
        Ok(())
    }

    /// A product of each head with a matrix of its own.
    fn head_matmul(&mut self, node: &Node, sites: Option<SiteId>) -> Result<()> {
        let x = self.activation(node.inputs[0])?;
        let weights = (1..node.inputs.len()).map(|i| self.weight(node, i));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let used = weights.len() as u32;
        let anchor = Anchor::Experts {
            x: 0,
            routes: None,
            k: self.graph.width(node.inputs[0]) / used,
            n: self.graph.width(node.output) / used,
            used,
            combine: false,
            parts: vec![ExpertPart { weights, sites }],
        };
        self.push(node, anchor, vec![Operand::Value(x)]);
        Ok(())
    }

    /// Attention, behind the writes of the step's keys and values.
    fn attention(&mut self, node: &Node, spec: AttentionSpec) -> Result<()> {
        let q = self.activation(node.inputs[0])?;
        let name = self.graph.value(node.output).name.clone();
        let layer = spec.layer;
        let stored = [("k", Sink::Key { layer }), ("v", Sink::Val { layer })];
        for ((what, sink), input) in stored.into_iter().zip(&node.inputs[1..]) {
            let x = self.activation(*input)?;
            self.write_kv(format!("{name}.{what}_write"), x, sink);
        }
        let anchor = Anchor::Attention { q: 0, spec };
        self.push(node, anchor, vec![Operand::Value(q)]);
        Ok(())
    }

    fn map_body(&self, node: &Node) -> Result<(Vec<Operand>, Body)> {
        if let Some(source) = moved_lanes(&node.op) {
            let values = node.inputs.iter().map(|i| self.activation(*i));
            let operands = values.map(|v| Ok(Operand::Value(v?)));
            return Ok((operands.collect::<Result<_>>()?, Body::identity(source)));
        }
        let mut operands = Vec::new();
        let mut insts = Vec::new();
        let sources = if matches!(node.op, Op::RmsNorm { .. }) {
            1
        } else {
            node.inputs.len()
        };
        for &input in &node.inputs[..sources] {
            let number = operands.len() as u16;
            match self.graph.as_weight(input) {
                Some(w) => {
                    operands.push(Operand::Vector(w));
                    insts.push(Inst::Lane(number));
                }
                None => {
                    operands.push(Operand::Value(self.activation(input)?));
                    insts.push(Inst::Load(number));
                }
            }
        }
        let next = operands.len() as u16;
        insts.push(match &node.op {
            Op::Unary(op) => Inst::Unary(*op, 0),
            Op::Binary(op) => Inst::Binary(*op, 0, 1),
            Op::Scale(c) => Inst::Scale(F32::new(*c), 0),
            Op::RmsNorm { eps, group } => {
                operands.push(Operand::Vector(self.weight(node, 1)?));
                Inst::RmsNorm {
                    x: 0,
                    weight: next,
                    eps: F32::new(*eps),
                    group: *group,
                }
            }
            Op::Softmax { group } => Inst::Softmax {
                x: 0,
                group: *group,
            },
            Op::Rope { rope, head_dim } => {
                operands.push(Operand::Rope(*rope));
                let spec = self.graph.rope(*rope);
                let (dims, layout) = (spec.dims, spec.layout);
                Inst::Rope {
                    x: 0,
                    table: next,
                    head_dim: *head_dim,
                    dims,
                    layout,
                }
            }
            other => return Err(self.invalid(&format!("{other:?}"), "is not a lane op")),
        });
        Ok((operands, Body { insts }))
    }

    /// Adds the kernel of a node; its one tail stores the anchor's result as it is.
    fn push(&mut self, node: &Node, anchor: Anchor, operands: Vec<Operand>) -> &mut Kernel {
        let output = self.graph.value(node.output);
        let (name, rows) = (output.name.clone(), output.shape[0]);
        let width = self.graph.width(node.output);
        let value = self.new_value(name.clone(), rows, width, Element::F32);
        self.by_value.insert(node.output, value);
        let tail = Tail {
            width,
            body: Body::identity(Inst::Result(0)),
            sink: Sink::Value(value),
        };
        let at = self.kernels.len();
        self.kernels
            .push(kernel(name, anchor, rows, operands, tail));
        &mut self.kernels[at]
    }

    fn write_kv(&mut self, name: String, x: PlanValueId, sink: Sink) {
        let PlanValue { rows, width, .. } = self.values[x.index()];
        let tail = Tail {
            width,
            body: Body::identity(Inst::Load(0)),
            sink,
        };
        self.kernels.push(kernel(
            name,
            Anchor::Map,
            rows,
            vec![Operand::Value(x)],
            tail,
        ));
    }

    fn argmax(&mut self, logits: PlanValueId) -> PlanValueId {
        let value = self.new_value("argmax".into(), L, 1, Element::U32);
        let tail = Tail {
            width: 1,
            body: Body::default(),
            sink: Sink::Value(value),
        };
        let operands = vec![Operand::Value(logits)];
        self.kernels.push(kernel(
            "argmax".into(),
            Anchor::ArgMax { x: 0 },
            L,
            operands,
            tail,
        ));
        value
    }

    fn new_value(&mut self, name: String, rows: Dim, width: u32, element: Element) -> PlanValueId {
        self.values.push(PlanValue {
            name,
            rows,
            width,
            element,
            offset: 0,
        });
        PlanValueId(self.values.len() as u32 - 1)
    }

    fn activation(&self, value: ValueId) -> Result<PlanValueId> {
        self.by_value.get(&value).copied().ok_or_else(|| {
            self.invalid(
                &self.graph.value(value).name,
                "is not an activation computed before its use",
            )
        })
    }

    fn weight(&self, node: &Node, input: usize) -> Result<WeightId> {
        self.graph.as_weight(node.inputs[input]).ok_or_else(|| {
            self.invalid(
                &self.graph.value(node.output).name,
                "needs a declared weight as its operand",
            )
        })
    }

    fn invalid(&self, kernel: &str, reason: &str) -> Error {
        Error::Invalid {
            pass: "lower",
            kernel: kernel.into(),
            reason: reason.into(),
        }
    }
}

/// The instruction of an op that moves lanes; its operands are numbered as the op's.
fn moved_lanes(op: &Op) -> Option<Inst> {
    match *op {
        Op::Lanes {
            group,
            first,
            count,
        } => Some(Inst::Part {
            from: 0,
            group,
            first,
            count,
        }),
        Op::Join { left, right } => Some(Inst::Join {
            from: [0, 1],
            lanes: [left, right],
        }),
        _ => None,
    }
}

fn kernel(name: String, anchor: Anchor, rows: Dim, operands: Vec<Operand>, tail: Tail) -> Kernel {
    Kernel {
        name,
        anchor,
        rows,
        operands,
        prologue: Body::default(),
        first: vec![],
        tails: vec![tail],
        variants: vec![],
        scratch: None,
    }
}
