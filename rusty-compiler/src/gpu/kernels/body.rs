//! Bodies become source: each instruction of a [`Body`](crate::plan::Body) is expanded for one lane of one row.
//!
//! Evaluation is lazy in lanes: a rotation evaluates its operand again at the partner lane, so no lane waits
//! for another. Only norms and softmaxes over a whole segment are reductions; their [factors](super::factors) are made
//! beforehand by the cube that owns the segment, or, of the norm that ends a contraction's prologue, [last](super::norms).

use super::decode::decode_one;
use super::elementwise::{binary, unary};
use super::embedding::changed;
use super::env::{Buffers, header};
use super::factors::{norm_factor, softmax_factors};
use crate::plan::Inst;
use cubecl::prelude::*;
use rusty_graph::RopeLayout;
use rusty_loader::Format;

/// Where an operand of a body lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the arena at the word that scalar `arg` states, rows of `width`.
    Arena {
        /// Scalar of the launch.
        arg: usize,
        /// Elements per row.
        width: u32,
    },
    /// In the vectors at the word that scalar `arg` states.
    Vectors {
        /// Scalar of the launch.
        arg: usize,
    },
    /// In the step buffer, where header word `word` says.
    Rope {
        /// Header word.
        word: usize,
    },
}

/// What `Inst::Result` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Nothing.
    None,
    /// The lane's values, made beforehand.
    Given,
    /// Element `lane` of the weight row that starts at byte `base`.
    Weight {
        /// Stored format.
        format: Format,
    },
    /// The same, as the row's adapter changes it.
    ChangedWeight {
        /// Stored format.
        format: Format,
    },
    /// Element `lane` of the arena row that starts at word `base`.
    Arena,
}

/// A body with its operands resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Instructions; the last one is the result.
    pub insts: Vec<Inst>,
    /// Where operands lie, by operand number.
    pub places: Vec<Place>,
    /// What results are.
    pub source: Source,
    /// Lanes of the groups whose [factors](super::factors) were made beforehand.
    pub segment: u32,
}

impl Program {
    pub(super) fn operand(&self, number: u16) -> Place {
        self.places[number as usize]
    }
}

/// Value of instruction `upto` at `lane` of `row`.
#[cube]
pub fn evaluate(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    factors: &Sequence<f32>,
    base: u32,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
    #[comptime] upto: usize,
) -> f32 {
    let mut regs = Sequence::<f32>::new();
    #[unroll]
    for at in 0..comptime!(upto + 1) {
        let value = instruction(
            buffers,
            results,
            factors,
            &regs,
            base,
            row,
            lane,
            comptime!(program.clone()),
            at,
        );
        regs.push(value);
    }
    regs[upto]
}

/// Value of instruction `at` from those before it.
#[cube]
pub(super) fn instruction(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    factors: &Sequence<f32>,
    regs: &Sequence<f32>,
    base: u32,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
    #[comptime] at: usize,
) -> f32 {
    match comptime!(program.insts[at]) {
        Inst::Result(i) => {
            let source = comptime!(program.source);
            result(buffers, results, base, row, lane, source, i)
        }
        Inst::Load(o) => load(buffers, row, lane, comptime!(program.operand(o))),
        Inst::Lane(o) => load(buffers, row, lane, comptime!(program.operand(o))),
        Inst::Chosen(o) => {
            let chosen = buffers.step[(buffers.step[header::OUTPUTS] + row) as usize];
            load(buffers, chosen, lane, comptime!(program.operand(o)))
        }
        Inst::Part {
            from,
            group,
            first,
            count,
        } => {
            let moved = lane / count * group + first + lane % count;
            load(buffers, row, moved, comptime!(program.operand(from)))
        }
        Inst::Join { from, lanes } => joined(
            buffers,
            row,
            lane,
            comptime!(program.operand(from[0])),
            comptime!(program.operand(from[1])),
            comptime!(lanes[0]),
            comptime!(lanes[1]),
        ),
        Inst::Unary(op, x) => unary(regs[comptime!(x as usize)], op),
        Inst::Binary(op, a, b) => {
            binary(regs[comptime!(a as usize)], regs[comptime!(b as usize)], op)
        }
        Inst::Scale(c, x) => regs[comptime!(x as usize)] * comptime!(c.get()),
        _ => of_group(
            buffers,
            results,
            factors,
            regs,
            base,
            row,
            lane,
            comptime!(program.clone()),
            at,
        ),
    }
}

/// What the anchor made: result `number`.
#[cube]
fn result(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    base: u32,
    row: u32,
    lane: u32,
    #[comptime] source: Source,
    #[comptime] number: u16,
) -> f32 {
    match source {
        Source::Given => results[comptime!(number as usize)],
        Source::Weight { format } => decode_one(buffers, base, lane, format),
        Source::ChangedWeight { format } => changed(buffers, base, row, lane, format),
        Source::Arena => buffers.arena[(base + lane) as usize],
        Source::None => 0.0f32.runtime(),
    }
}

/// A lane of two operands' rows that are joined group by group, of `left` and `right` lanes.
#[cube]
fn joined(
    buffers: &Buffers<'_>,
    row: u32,
    lane: u32,
    #[comptime] first: Place,
    #[comptime] second: Place,
    #[comptime] left: u32,
    #[comptime] right: u32,
) -> f32 {
    let turn = lane / comptime!(left + right);
    let inner = lane % comptime!(left + right);
    let in_left = inner < left;
    // Both are read, at a lane that is there.
    let a = load(
        buffers,
        row,
        turn * left + min(inner, comptime!(left - 1).runtime()),
        first,
    );
    let b = load(
        buffers,
        row,
        turn * right + select(in_left, 0u32.runtime(), inner - left),
        second,
    );
    select(in_left, a, b)
}

/// Value of an instruction that looks at other lanes of its group.
#[cube]
fn of_group(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    factors: &Sequence<f32>,
    regs: &Sequence<f32>,
    base: u32,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
    #[comptime] at: usize,
) -> f32 {
    match comptime!(program.insts[at]) {
        Inst::RmsNorm { .. } => normed(
            buffers,
            results,
            factors,
            regs,
            base,
            row,
            lane,
            comptime!(program.clone()),
            at,
        ),
        Inst::Softmax { x, .. } => {
            let (most, by) = softmax_factors(factors, comptime!(program.clone()), at);
            (regs[comptime!(x as usize)] - most).exp() * by
        }
        Inst::Rope {
            x,
            table,
            head_dim,
            dims,
            layout,
        } => rotate(
            buffers,
            results,
            factors,
            regs[comptime!(x as usize)],
            base,
            row,
            lane,
            comptime!(program.clone()),
            comptime!(x as usize),
            comptime!(program.operand(table)),
            head_dim,
            dims,
            layout,
        ),
        // The others look at their own lane.
        _ => 0.0f32.runtime(),
    }
}

/// A lane of a norm.
#[cube]
fn normed(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    factors: &Sequence<f32>,
    regs: &Sequence<f32>,
    base: u32,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
    #[comptime] at: usize,
) -> f32 {
    match comptime!(program.insts[at]) {
        Inst::RmsNorm {
            x,
            weight,
            eps,
            group,
        } => {
            let factor = norm_factor(
                buffers,
                results,
                factors,
                base,
                row,
                lane,
                comptime!(program.clone()),
                at,
                comptime!(x as usize),
                eps,
                group,
            );
            let gain = load(
                buffers,
                row,
                lane % group,
                comptime!(program.operand(weight)),
            );
            regs[comptime!(x as usize)] * factor * gain
        }
        _ => 0.0f32.runtime(),
    }
}

/// Reads an operand.
#[cube]
pub(super) fn load(buffers: &Buffers<'_>, row: u32, lane: u32, #[comptime] place: Place) -> f32 {
    match place {
        Place::Arena { arg, width } => {
            buffers.arena[(buffers.args[arg] + row * width + lane) as usize]
        }
        Place::Vectors { arg } => buffers.vectors[(buffers.args[arg] + lane) as usize],
        Place::Rope { .. } => 0.0f32.runtime(),
    }
}

/// Rotary embedding of one lane (arXiv 2104.09864); lanes past `dims` of a head pass through.
#[cube]
fn rotate(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    factors: &Sequence<f32>,
    own: f32,
    base: u32,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
    #[comptime] x: usize,
    #[comptime] table: Place,
    #[comptime] head_dim: u32,
    #[comptime] dims: u32,
    #[comptime] layout: RopeLayout,
) -> f32 {
    let half = comptime!(dims / 2);
    let inner = lane % head_dim;
    let mut out = own;
    if inner < dims {
        let (pair, second) = match layout {
            RopeLayout::Half => (inner % half, inner >= half),
            RopeLayout::Interleaved => (inner / 2, inner % 2 == 1),
        };
        let distance = match layout {
            RopeLayout::Half => half,
            RopeLayout::Interleaved => 1u32,
        };
        let partner = select(second, lane - distance, lane + distance);
        let other = evaluate(
            buffers,
            results,
            factors,
            base,
            row,
            partner,
            comptime!(program.clone()),
            x,
        );
        let at = match table {
            Place::Rope { word } => buffers.step[word] + (row * half + pair) * 2,
            _ => 0u32.runtime(),
        };
        let cos = f32::reinterpret(buffers.step[at as usize]);
        let sin = f32::reinterpret(buffers.step[(at + 1) as usize]);
        out = own * cos + select(second, other, -other) * sin;
    }
    out
}
