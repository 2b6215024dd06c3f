//! What several passes need to know of kernels and bodies, and how bodies are moved, renamed and spliced.

use crate::plan::{Anchor, Body, Inst, Kernel, Operand, Plan, PlanValueId, Reg};

/// Of a contraction whose input is an activation as it is: the input's width, operand number and value.
pub(super) fn plain_input(plan: &Plan, at: usize) -> Option<(u32, u16, PlanValueId)> {
    let kernel = &plan.kernels[at];
    let Anchor::Contract { k, .. } = kernel.anchor else {
        return None;
    };
    let Some(Inst::Load(input)) = kernel.prologue.as_identity() else {
        return None;
    };
    match kernel.operands[input as usize] {
        Operand::Value(value) => Some((k, input, value)),
        _ => None,
    }
}

/// Whether a caller may ask for the value.
pub(super) fn is_output(plan: &Plan, value: PlanValueId) -> bool {
    [plan.logits, plan.hidden, plan.argmax].contains(&value)
}

/// Whether tails read an operand.
pub(super) fn read_by_tails(kernel: &Kernel, operand: u16) -> bool {
    kernel.tails.iter().any(|t| t.body.reads(operand))
}

/// Elementwise but for at most one norm, over the whole row, which ends it: its factor can then be applied to products.
pub(super) fn is_prologue(body: &Body, k: u32) -> bool {
    let last = body.insts.len() - 1;
    body.insts.iter().enumerate().all(|(at, inst)| match inst {
        Inst::RmsNorm { group, .. } => *group == k && at == last,
        Inst::Softmax { .. } | Inst::Rope { .. } => false,
        _ => true,
    })
}

/// The plan without the kernels that are `gone`, said for each.
pub(super) fn without(mut plan: Plan, gone: &[bool]) -> Plan {
    let mut gone = gone.iter();
    plan.kernels.retain(|_| gone.next() != Some(&true));
    plan
}

/// What a kernel's name has behind its last dot: `attn_q` of `blk.0.attn_q`.
pub(super) fn last_word(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The operand's number in `operands`, adding it where it is new.
pub(super) fn intern(operands: &mut Vec<Operand>, operand: Operand) -> u16 {
    let found = operands.iter().position(|o| *o == operand);
    found.unwrap_or_else(|| {
        operands.push(operand);
        operands.len() - 1
    }) as u16
}

/// The instruction with its registers and operand numbers renamed.
pub(super) fn rename(
    inst: Inst,
    reg: impl Fn(Reg) -> Reg,
    mut operand: impl FnMut(u16) -> u16,
) -> Inst {
    match inst {
        Inst::Result(i) => Inst::Result(i),
        Inst::Load(o) => Inst::Load(operand(o)),
        Inst::Lane(o) => Inst::Lane(operand(o)),
        Inst::Chosen(o) => Inst::Chosen(operand(o)),
        Inst::Part {
            from,
            group,
            first,
            count,
        } => Inst::Part {
            from: operand(from),
            group,
            first,
            count,
        },
        Inst::Join { from, lanes } => Inst::Join {
            from: from.map(&mut operand),
            lanes,
        },
        Inst::Unary(op, a) => Inst::Unary(op, reg(a)),
        Inst::Binary(op, a, b) => Inst::Binary(op, reg(a), reg(b)),
        Inst::Scale(c, a) => Inst::Scale(c, reg(a)),
        Inst::RmsNorm {
            x,
            weight,
            eps,
            group,
        } => Inst::RmsNorm {
            x: reg(x),
            weight: operand(weight),
            eps,
            group,
        },
        Inst::Softmax { x, group } => Inst::Softmax { x: reg(x), group },
        Inst::Rope {
            x,
            table,
            head_dim,
            dims,
            layout,
        } => Inst::Rope {
            x: reg(x),
            table: operand(table),
            head_dim,
            dims,
            layout,
        },
    }
}

/// The body with operand numbers renamed and result numbers shifted.
pub(super) fn moved(body: &Body, from: &[Operand], to: &mut Vec<Operand>, results: u16) -> Body {
    let rename_one = |inst: &Inst| match rename(*inst, |r| r, |o| intern(to, from[o as usize])) {
        Inst::Result(i) => Inst::Result(i + results),
        other => other,
    };
    Body {
        insts: body.insts.iter().map(rename_one).collect(),
    }
}

/// `consumer` with each `Load` of a value in `inlined` replaced by the body that makes it. All bodies use
/// the operand table `operands` already.
pub(crate) fn inline(
    consumer: &Body,
    operands: &[Operand],
    inlined: &[(PlanValueId, Body)],
) -> Body {
    let mut insts: Vec<Inst> = Vec::new();
    let mut renamed: Vec<Reg> = Vec::new();
    let mut spliced: Vec<Option<Reg>> = vec![None; inlined.len()];
    for inst in &consumer.insts {
        let source = match inst {
            Inst::Load(o) => inlined
                .iter()
                .position(|(v, _)| operands[*o as usize] == Operand::Value(*v)),
            _ => None,
        };
        let reg = match source {
            Some(i) => *spliced[i].get_or_insert_with(|| splice(&mut insts, &inlined[i].1)),
            None => {
                insts.push(rename(*inst, |r| renamed[r as usize], |o| o));
                insts.len() as Reg - 1
            }
        };
        renamed.push(reg);
    }
    Body { insts }
}

fn splice(insts: &mut Vec<Inst>, body: &Body) -> Reg {
    let base = insts.len() as Reg;
    insts.extend(body.insts.iter().map(|i| rename(*i, |r| r + base, |o| o)));
    insts.len() as Reg - 1
}

/// Drops operands that nothing names any more and renumbers the rest.
pub(super) fn compact_operands(kernel: &mut Kernel) {
    let old = std::mem::take(&mut kernel.operands);
    let mut operands = Vec::new();
    let tails = kernel.first.iter_mut().chain(&mut kernel.tails);
    for body in std::iter::once(&mut kernel.prologue).chain(tails.map(|t| &mut t.body)) {
        *body = moved(body, &old, &mut operands, 0);
    }
    match &mut kernel.anchor {
        Anchor::SelectRows { x } | Anchor::ArgMax { x } | Anchor::Attention { q: x, .. } => {
            *x = intern(&mut operands, old[*x as usize]);
        }
        Anchor::Route { x, bias: other, .. }
        | Anchor::Experts {
            x, routes: other, ..
        } => {
            *x = intern(&mut operands, old[*x as usize]);
            if let Some(other) = other {
                *other = intern(&mut operands, old[*other as usize]);
            }
        }
        Anchor::Map | Anchor::Gather { .. } | Anchor::Contract { .. } => {}
    }
    kernel.operands = operands;
}
