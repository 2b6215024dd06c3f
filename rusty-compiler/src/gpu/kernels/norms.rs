//! Norms of contractions' inputs, made last. The factor of a row's norm is the same for all of its lanes, so products are made of
//! what is not normed yet, squares are summed while inputs are fetched, and products are multiplied by the factor at the end:
//! nobody reads the row before, or waits for its sum.

use super::body::{Place, Program, evaluate, load};
use super::env::Buffers;
use super::pairs::evaluate_pair;
use crate::plan::Inst;
use cubecl::prelude::*;

/// A norm over the whole row that ends a prologue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LateNorm {
    /// Instruction that is normed.
    x: usize,
    gain: Place,
    eps: f32,
}

impl Program {
    /// The norm that ends it.
    pub fn late_norm(&self) -> Option<LateNorm> {
        match *self.insts.last()? {
            Inst::RmsNorm { x, weight, eps, .. } => Some(LateNorm {
                x: x as usize,
                gain: self.operand(weight),
                eps: eps.get(),
            }),
            _ => None,
        }
    }

    /// Whether it has no norm over a row but one that ends it.
    pub fn norms_late(&self) -> bool {
        self.reductions()
            .iter()
            .all(|at| *at + 1 == self.insts.len())
    }
}

/// What a contraction multiplies at a lane, and what that adds to the squares of its norm.
#[cube]
pub fn input_at(
    buffers: &Buffers<'_>,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
) -> (f32, f32) {
    let none = Sequence::<f32>::new();
    let upto = comptime!(program.late_norm().map_or(program.insts.len() - 1, |n| n.x));
    let norm = comptime!(program.late_norm());
    let value = evaluate(buffers, &none, &none, 0u32, row, lane, program, upto);
    match norm {
        Some(norm) => {
            let gain = load(buffers, row, lane, comptime!(norm.gain));
            (value * gain, value * value)
        }
        None => (value, 0.0f32.runtime()),
    }
}

/// The same at `lane`, an even number, and the lane behind it, with what both add to the squares.
#[cube]
pub fn input_pair(
    buffers: &Buffers<'_>,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
) -> (f32, f32, f32) {
    let upto = comptime!(program.late_norm().map_or(program.insts.len() - 1, |n| n.x));
    let norm = comptime!(program.late_norm());
    let (low, high) = evaluate_pair(buffers, row, lane, program, upto);
    match norm {
        Some(norm) => {
            let gain = load(buffers, row, lane, comptime!(norm.gain));
            let next = load(buffers, row, lane + 1, comptime!(norm.gain));
            (low * gain, high * next, low * low + high * high)
        }
        None => (low, high, 0.0f32.runtime()),
    }
}

/// The factor of a row of `k` lanes from the sum of its squares: 1 where there is no norm.
#[cube]
pub fn norm_scale(squares: f32, #[comptime] k: u32, #[comptime] program: Program) -> f32 {
    match comptime!(program.late_norm()) {
        Some(norm) => (squares / comptime!(k as f32) + comptime!(norm.eps)).inverse_sqrt(),
        None => 1.0f32.runtime(),
    }
}
