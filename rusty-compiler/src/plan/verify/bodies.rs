//! The invariants of bodies: numbers 2 to 4 of [a plan's](super).

use super::{Role, State};
use crate::plan::{Anchor, Body, Inst, Kernel, Operand, Reg};

/// A body and where it stands.
#[derive(Clone, Copy)]
struct Place<'a> {
    kernel: &'a Kernel,
    body: &'a Body,
    /// Lanes of the rows that it makes.
    width: u32,
    role: Role,
}

impl State<'_> {
    /// Checks a body that makes rows of `width` lanes.
    pub(super) fn body(
        &self,
        kernel: &Kernel,
        body: &Body,
        width: u32,
        role: Role,
    ) -> Result<(), String> {
        if body.insts.is_empty() {
            return Err("empty body".into());
        }
        let tile = matches!(
            kernel.anchor,
            Anchor::Contract { .. } | Anchor::Attention { .. } | Anchor::Experts { .. }
        );
        if tile && role == Role::Tail && !body.is_elementwise() {
            return Err("a tail behind a tile must be elementwise".into());
        }
        let place = Place {
            kernel,
            body,
            width,
            role,
        };
        for (at, inst) in body.insts.iter().enumerate() {
            if let Some(reg) = registers(inst).find(|r| *r as usize >= at) {
                return Err(format!(
                    "register {reg} used at {at}, before its definition"
                ));
            }
            match inst {
                Inst::Result(_) | Inst::Load(_) | Inst::Lane(_) | Inst::Chosen(_) => {
                    self.source(place, inst)?;
                }
                Inst::Part { .. } | Inst::Join { .. } => self.moved_lanes(place, inst)?,
                Inst::Unary(..) | Inst::Scale(..) | Inst::Binary(..) => {}
                Inst::RmsNorm { .. } => self.norm(place, at)?,
                Inst::Softmax { group, .. } => softmax(place, *group)?,
                Inst::Rope { .. } => rotation(place, inst)?,
            }
        }
        Ok(())
    }

    /// What is read lane by lane.
    fn source(&self, place: Place<'_>, inst: &Inst) -> Result<(), String> {
        let Place { kernel, width, .. } = place;
        match *inst {
            Inst::Result(i) if place.role == Role::Prologue => {
                Err(format!("prologue reads result {i}"))
            }
            Inst::Result(i) => self.result(kernel, i, width),
            Inst::Load(o) | Inst::Lane(o) => self.operand(kernel, inst, o, width),
            Inst::Chosen(o) => {
                self.operand(kernel, inst, o, width)?;
                let of = |o: &Operand| matches!(o, Operand::Value(v) if self.plan.value(*v).rows != kernel.rows);
                let other = kernel.operands.get(o as usize).is_some_and(of);
                other
                    .then_some(())
                    .ok_or(format!("{inst:?} names a value of the kernel's own rows"))
            }
            _ => Ok(()),
        }
    }

    /// Lanes that are read at other places than their own.
    fn moved_lanes(&self, place: Place<'_>, inst: &Inst) -> Result<(), String> {
        let Place { kernel, width, .. } = place;
        let misfit = || Err(format!("{inst:?} in rows of {width}"));
        match *inst {
            Inst::Part {
                from,
                group,
                first,
                count,
            } => {
                if count == 0 || first + count > group || !width.is_multiple_of(count) {
                    return misfit();
                }
                self.operand(kernel, &Inst::Load(from), from, width / count * group)
            }
            Inst::Join { from, lanes } => {
                let group = lanes[0] + lanes[1];
                if lanes.contains(&0) || !width.is_multiple_of(group) {
                    return misfit();
                }
                from.into_iter().zip(lanes).try_for_each(|(from, lanes)| {
                    self.operand(kernel, &Inst::Load(from), from, width / group * lanes)
                })
            }
            _ => Ok(()),
        }
    }

    /// The norm at `at`.
    fn norm(&self, place: Place<'_>, at: usize) -> Result<(), String> {
        let Inst::RmsNorm { weight, group, .. } = place.body.insts[at] else {
            return Ok(());
        };
        self.operand(place.kernel, &Inst::Lane(weight), weight, group)?;
        let width = place.width;
        // A prologue's is applied to products, and so the only one.
        let last = at + 1 == place.body.insts.len();
        let ends = place.role != Role::Prologue || (group == width && last);
        (group != 0 && width.is_multiple_of(group) && ends)
            .then_some(())
            .ok_or(format!("norm over groups of {group} in rows of {width}"))
    }
}

fn softmax(place: Place<'_>, group: u32) -> Result<(), String> {
    let width = place.width;
    let fits = place.role == Role::Tail && Body::groups_agree(&[place.body]);
    (group != 0 && width.is_multiple_of(group) && fits)
        .then_some(())
        .ok_or(format!("softmax over {group} lanes in rows of {width}"))
}

fn rotation(place: Place<'_>, inst: &Inst) -> Result<(), String> {
    let Inst::Rope {
        table,
        head_dim,
        dims,
        ..
    } = *inst
    else {
        return Ok(());
    };
    let width = place.width;
    let operand = place.kernel.operands.get(table as usize);
    let by_table = matches!(operand, Some(Operand::Rope(_)));
    let heads = head_dim != 0 && width.is_multiple_of(head_dim) && dims <= head_dim;
    (place.role != Role::Prologue && by_table && heads)
        .then_some(())
        .ok_or(format!(
            "rotation of heads of {head_dim} in rows of {width}"
        ))
}

/// The registers that an instruction reads.
fn registers(inst: &Inst) -> impl Iterator<Item = Reg> {
    let read = match *inst {
        Inst::Binary(_, a, b) => [Some(a), Some(b)],
        Inst::Unary(_, x)
        | Inst::Scale(_, x)
        | Inst::RmsNorm { x, .. }
        | Inst::Softmax { x, .. }
        | Inst::Rope { x, .. } => [Some(x), None],
        Inst::Result(_)
        | Inst::Load(_)
        | Inst::Lane(_)
        | Inst::Chosen(_)
        | Inst::Part { .. }
        | Inst::Join { .. } => [None, None],
    };
    read.into_iter().flatten()
}
