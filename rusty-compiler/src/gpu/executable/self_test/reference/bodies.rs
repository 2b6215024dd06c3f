//! Bodies over the rows of a kernel that are computed.

use crate::plan::{Body, Inst, Reg};
use rusty_graph::interpret::{Matrix, ops};

/// An operand's rows that are computed, and the turns that it has for them.
#[derive(Default)]
pub(super) struct Given {
    pub lanes: Matrix,
    pub turns: Vec<f32>,
}

/// A kernel's rows that are computed, and its operands.
pub(super) struct Rows {
    pub numbers: Vec<usize>,
    pub operands: Vec<Given>,
    /// Those of them that are compared.
    pub compared: Vec<usize>,
}

impl Rows {
    pub fn lanes(&self, operand: u16) -> &Matrix {
        &self.operands[operand as usize].lanes
    }

    /// A body over all rows; `lanes` of it where it is elementwise, or all.
    pub fn body(&self, body: &Body, results: &[Matrix], lanes: Option<&[u32]>) -> Matrix {
        let mut made: Vec<Matrix> = Vec::with_capacity(body.insts.len());
        for inst in &body.insts {
            let reg = |r: Reg| &made[r as usize];
            let taken = |matrix: &Matrix| match lanes {
                Some(lanes) => some_lanes(matrix, lanes),
                None => matrix.clone(),
            };
            let value = match *inst {
                Inst::Result(i) => results[i as usize].clone(),
                Inst::Load(o) | Inst::Lane(o) | Inst::Chosen(o) => taken(self.lanes(o)),
                Inst::Part {
                    from,
                    group,
                    first,
                    count,
                } => {
                    let (group, first) = (group as usize, first as usize);
                    let part = first..first + count as usize;
                    taken(&ops::lanes(self.lanes(from), group, part))
                }
                Inst::Join {
                    from: [a, b],
                    lanes: [left, right],
                } => {
                    let (a, b) = (self.lanes(a), self.lanes(b));
                    taken(&ops::join(a, b, left as usize, right as usize))
                }
                Inst::Unary(op, x) => reg(x).map(|v| ops::unary(op, v)),
                Inst::Binary(op, a, b) => ops::binary(op, reg(a), reg(b)),
                Inst::Scale(c, x) => reg(x).map(|v| c.get() * v),
                Inst::RmsNorm {
                    x,
                    weight,
                    eps,
                    group,
                } => {
                    let weight = self.lanes(weight).row(0);
                    ops::rms_norm(reg(x), weight, eps.get(), group as usize)
                }
                Inst::Softmax { x, group } => ops::softmax(reg(x), group as usize),
                Inst::Rope {
                    x,
                    table,
                    head_dim,
                    dims,
                    layout,
                } => {
                    let turns = &self.operands[table as usize].turns;
                    ops::rotate(reg(x), turns, (dims, layout), head_dim as usize)
                }
            };
            made.push(value);
        }
        made.pop().unwrap_or_default()
    }
}

pub(super) fn some_rows(matrix: &Matrix, numbers: &[usize]) -> Matrix {
    let rows = numbers.iter().flat_map(|row| matrix.row(*row));
    Matrix {
        rows: numbers.len(),
        width: matrix.width,
        data: rows.copied().collect(),
    }
}

fn some_lanes(matrix: &Matrix, lanes: &[u32]) -> Matrix {
    let row = |row: usize| lanes.iter().map(move |l| matrix.row(row)[*l as usize]);
    Matrix {
        rows: matrix.rows,
        width: lanes.len(),
        data: (0..matrix.rows).flat_map(row).collect(),
    }
}
