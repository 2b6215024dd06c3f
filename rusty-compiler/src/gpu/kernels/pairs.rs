//! Bodies at two neighbouring lanes, for kernels that pack pairs: what lies side by side is one read where the language reads
//! vectors out of words.

use super::body::{Place, Program, instruction};
use super::env::{Buffers, is_cuda};
use crate::plan::Inst;
use cubecl::prelude::*;

impl Program {
    /// Scalar and row width of what an instruction loads, where pairs of its lanes begin at even words. (Values begin at whole
    /// cache lines of the arena.)
    fn pairs(&self, at: usize) -> Option<(usize, u32)> {
        match self.insts[at] {
            Inst::Load(o) => match self.operand(o) {
                Place::Arena { arg, width } if width.is_multiple_of(2) => Some((arg, width)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The values of instruction `upto` at `lane`, an even number, and the lane behind it.
#[cube]
pub fn evaluate_pair(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
    #[comptime] upto: usize,
) -> (f32, f32) {
    let cuda = is_cuda();
    let mut low = Sequence::<f32>::new();
    let mut high = Sequence::<f32>::new();
    #[unroll]
    for at in 0..comptime!(upto + 1) {
        let pairs = comptime!(if cuda { program.pairs(at) } else { None });
        match pairs {
            Some((arg, width)) => {
                let first = buffers.args[arg] + row * width + lane;
                let twos = buffers.arena.as_vectorized().with_vector_size::<Const<2>>();
                let two = twos[(first / 2) as usize];
                low.push(two.extract(0usize));
                high.push(two.extract(1usize));
            }
            None => {
                let first = single(
                    buffers,
                    factors,
                    &low,
                    row,
                    lane,
                    comptime!(program.clone()),
                    at,
                );
                let second = single(
                    buffers,
                    factors,
                    &high,
                    row,
                    lane + 1,
                    comptime!(program.clone()),
                    at,
                );
                low.push(first);
                high.push(second);
            }
        }
    }
    (low[upto], high[upto])
}

/// Instruction `at` at one lane.
#[cube]
fn single(
    buffers: &Buffers<'_>,
    factors: &Sequence<f32>,
    before: &Sequence<f32>,
    row: u32,
    lane: u32,
    #[comptime] program: Program,
    #[comptime] at: usize,
) -> f32 {
    let none = Sequence::<f32>::new();
    instruction(
        buffers, &none, factors, before, 0u32, row, lane, program, at,
    )
}
