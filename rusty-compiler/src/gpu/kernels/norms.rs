//! Norms of contractions' inputs, made last. The factor of a row's norm is the same for all of its lanes, so products are made of
//! what is not normed yet, squares are summed while inputs are fetched, and products are multiplied by the factor at the end:
//! nobody reads the row before, or waits for its sum.

use super::body::{Place, Program, evaluate, load};
use super::env::{Buffers, put};
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
    /// The norm that ends it: the factor of one before that is [made beforehand](super::gemv).
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

    /// The instruction whose value contractions take: what is normed, or the last.
    fn taken(&self) -> usize {
        self.late_norm().map_or(self.insts.len() - 1, |norm| norm.x)
    }
}

/// What a contraction multiplies at a lane, and what that adds to the squares of its norm. `factors`: of norms before that.
#[cube]
pub fn input_at(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
) -> (f32, f32) {
    let none = Sequence::<f32>::new();
    let (upto, norm) = comptime!((program.taken(), program.late_norm()));
    let value = evaluate(buffers, &none, factors, 0u32, row, lane, program, upto);
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
    factors: &Sequence<f32>,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
) -> (f32, f32, f32) {
    let (upto, norm) = comptime!((program.taken(), program.late_norm()));
    let (low, high) = evaluate_pair(buffers, factors, row, lane, program, upto);
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

/// How units share the inputs of a tile's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowShares {
    /// Units that share a row.
    pub parts: u32,
    /// Rows of which a unit has a part, `units / parts` apart.
    pub rows: u32,
    /// Units of the cube.
    pub units: u32,
}

/// The factors of a tile's rows, from the squares that units summed of their parts. `scratch` is overwritten; all units of the cube
/// must call it together.
#[cube]
pub fn tile_norms<T: CubePrimitive>(
    norms: &Shared<[f32]>,
    scratch: &Shared<[T]>,
    squares: &Array<f32>,
    #[comptime] shares: RowShares,
    #[comptime] k: u32,
    #[comptime] program: Program,
) {
    let parts = comptime!(shares.parts);
    #[unroll]
    for i in 0..comptime!(shares.rows) {
        let at = UNIT_POS + comptime!(i * shares.units);
        put(scratch, at, T::reinterpret(squares[i as usize]));
    }
    sync_cube();
    if UNIT_POS < comptime!(shares.rows * shares.units / shares.parts) {
        let mut total = 0.0f32;
        for i in 0..parts {
            total += f32::reinterpret(scratch[(UNIT_POS * parts + i) as usize]);
        }
        put(norms, UNIT_POS, norm_scale(total, k, program));
    }
    sync_cube();
}
