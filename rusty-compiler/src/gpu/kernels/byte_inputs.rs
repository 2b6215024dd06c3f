//! The input rows of [the matrix-vector kernel](super::gemv) as bytes, in shared memory.
//!
//! A run of a row has a scale of its own, its largest magnitude over 127. That rounds as kernels of CPUs do (by groups of 32
//! there), to a 254th of the largest of sixteen.

use super::byte_codes::WORDS;
use super::contract::ContractConfig;
use super::decode::RUN;
use super::env::{Buffers, put};
use super::gemv_inputs::input_pair_of;
use super::gemv_place::cube_row;
use super::gemv_products::Span;
use super::reduce::together;
use cubecl::prelude::*;

/// Words of a run in shared memory: its bytes, its scale and the sum of its bytes.
pub const RUN_WORDS: u32 = SUM + 1;
const SCALE: u32 = WORDS as u32;
const SUM: u32 = SCALE + 1;
/// Added to a small number, it leaves that rounded in the lowest bits: 1.5 * 2^23.
const ROUNDING: f32 = 12_582_912.0;
/// Its bits.
const ROUNDING_BITS: u32 = 0x4b40_0000;
/// Bits of the least magnitude by which 127 can be divided, 2^-120. What is smaller becomes zero.
const LEAST: u32 = 0x0380_0000;

/// The unit's runs of a cube's input rows.
#[derive(CubeType)]
pub struct ByteInputs {
    /// Bytes, [`WORDS`] for each run: `[row][run][word]`.
    pub words: Array<u32>,
    /// Scales of the runs, `[row][run]`.
    pub scales: Array<f32>,
    /// Sums of their bytes, `[row][run]`.
    pub sums: Array<f32>,
}

/// The inputs of a cube's rows from block `block` on, `here` blocks of them, as bytes where each unit looks for its runs, from word `begin`
/// of the segment on: `[row][block][run of the unit][word][unit]`. Their squares are added to `squares`. All units of the cube must call it together.
///
/// Four units make a run where planes let them find the largest magnitude together, else one does.
#[cube]
pub fn make_bytes(
    buffers: &Buffers<'_>,
    segment: &Shared<[u32]>,
    squares: &mut Array<f32>,
    span: &Span<'_>,
    block: u32,
    here: u32,
    begin: u32,
    #[comptime] config: ContractConfig,
) {
    let lanes = comptime!(config.block());
    let width = comptime!(config.width());
    let stride = comptime!(config.stride());
    let share = comptime!(if config.team.plane < WORDS as u32 {
        RUN as u32
    } else {
        4
    });
    // Blocks are a multiple of so many lanes for each unit of a plane, so no plane is divided here.
    let mut maker = UNIT_POS;
    while maker < here * comptime!(lanes / share) {
        let lane = maker * share;
        let of_block = lane % lanes;
        let of_unit = of_block % width;
        let run = lane / lanes * comptime!(config.runs()) + of_unit / RUN as u32;
        let at = begin + run * comptime!(RUN_WORDS * stride) + of_block / width;
        #[unroll]
        for m in 0..comptime!(config.cube_rows) {
            let own = cube_row(buffers, span.row, m, comptime!(config.clone()));
            let mut values = Array::<f32>::new(comptime!(share as usize));
            #[unroll]
            for i in 0..comptime!(share as usize / 2) {
                let pair = block * lanes + lane + comptime!(i as u32 * 2);
                let (low, high, square) =
                    input_pair_of(buffers, &span.factors, own, pair, comptime!(config.clone()));
                values[comptime!(i * 2)] = low;
                values[comptime!(i * 2 + 1)] = high;
                squares[m as usize] += square;
            }
            let made = rounded(&values, comptime!(share as usize));
            let to = comptime!(m * config.segment_words()) + at;
            let quarter = of_unit % RUN as u32 / 4;
            store_run(segment, &made, to, quarter, share, stride);
        }
        maker += config.team.units;
    }
}

/// Stores `lanes` lanes of a run, from its quarter `quarter` on, words `stride` apart.
#[cube]
fn store_run(
    segment: &Shared<[u32]>,
    made: &Rounded,
    at: u32,
    quarter: u32,
    #[comptime] lanes: u32,
    #[comptime] stride: u32,
) {
    #[unroll]
    for w in 0..comptime!(lanes as usize / 4) {
        let word = at + (quarter + comptime!(w as u32)) * stride;
        put(segment, word, made.words[w]);
    }
    if quarter == 0 {
        let (scale, sum) = comptime!((SCALE * stride, SUM * stride));
        put(segment, at + scale, u32::reinterpret(made.scale));
        put(segment, at + sum, u32::reinterpret(made.sum));
    }
}

/// A run or a quarter of one.
#[derive(CubeType)]
struct Rounded {
    /// Bytes of the lanes.
    words: Array<u32>,
    /// Scale of the run.
    scale: f32,
    /// Sum of the run's bytes.
    sum: f32,
}

/// `lanes` lanes of a run as bytes: sixteen, or four, of which the unit's three neighbours have the others.
#[cube]
fn rounded(values: &Array<f32>, #[comptime] lanes: usize) -> Rounded {
    // As whole numbers magnitudes are in order, and what is no number is the largest: it reaches the product by the scale.
    let mut largest = 0u32.runtime();
    #[unroll]
    for i in 0..lanes {
        largest = max(largest, u32::reinterpret(values[i]) & 0x7fff_ffff);
    }
    if comptime!(lanes < RUN) {
        together();
        largest = max(largest, plane_shuffle_xor(largest, 1u32));
        largest = max(largest, plane_shuffle_xor(largest, 2u32));
    }
    // Divided by what is not tiny: the way around such quotients would part the units of a plane.
    let divisor = f32::reinterpret(max(largest, LEAST.runtime()));
    let inverse = select(largest < LEAST, 0.0f32, 127.0f32 / divisor);
    let mut words = Array::<u32>::new(comptime!(lanes / 4));
    let mut sum = 0u32.runtime();
    #[unroll]
    for w in 0..comptime!(lanes / 4) {
        let mut word = 0u32.runtime();
        #[unroll]
        for i in 0..4usize {
            let bits = u32::reinterpret(values[comptime!(w * 4 + i)] * inverse + ROUNDING);
            word |= (bits & 0xff) << comptime!(i as u32 * 8);
            sum += bits;
        }
        words[w] = word;
    }
    sum -= comptime!(ROUNDING_BITS.wrapping_mul(lanes as u32));
    if comptime!(lanes < RUN) {
        together();
        sum += plane_shuffle_xor(sum, 1u32);
        sum += plane_shuffle_xor(sum, 2u32);
    }
    Rounded {
        words,
        scale: f32::reinterpret(largest) * comptime!(1.0f32 / 127.0),
        sum: f32::cast_from(i32::reinterpret(sum)),
    }
}

/// The unit's runs of its team's block `b` of those in shared memory.
#[cube]
pub fn load_bytes(
    segment: &Shared<[u32]>,
    b: u32,
    #[comptime] config: ContractConfig,
) -> ByteInputs {
    let inner = UNIT_POS % comptime!(config.team_units());
    let stride = comptime!(config.stride());
    let runs = comptime!(config.runs() as usize);
    let all = comptime!(config.cube_rows as usize * runs);
    let mut words = Array::<u32>::new(comptime!(all * WORDS));
    let mut scales = Array::<f32>::new(all);
    let mut sums = Array::<f32>::new(all);
    #[unroll]
    for r in 0..all {
        let run = b * comptime!(runs as u32) + comptime!((r % runs) as u32);
        let from = comptime!((r / runs) as u32 * config.segment_words());
        let at = from + run * comptime!(RUN_WORDS * stride) + inner;
        #[unroll]
        for w in 0..WORDS {
            let word = at + comptime!(w as u32 * stride);
            words[comptime!(r * WORDS + w)] = segment[word as usize];
        }
        let (scale, sum) = comptime!((SCALE * stride, SUM * stride));
        scales[r] = f32::reinterpret(segment[(at + scale) as usize]);
        sums[r] = f32::reinterpret(segment[(at + sum) as usize]);
    }
    ByteInputs {
        words,
        scales,
        sums,
    }
}
