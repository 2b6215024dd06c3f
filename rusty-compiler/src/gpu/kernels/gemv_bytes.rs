//! Products of bytes in [the matrix-vector kernel](super::gemv): codes of weights with an input row that is rounded to bytes.
//!
//! A run of the input has a scale of its own, its largest magnitude over 127, and its weights a scale of theirs, so a run's
//! product is a sum of whole numbers times both: four multiplications an instruction, and no code becomes a float. That
//! rounds inputs as kernels of CPUs do (by groups of 32 there), to a 254th of the largest of sixteen.

use super::byte_codes::{ByteCodes, WORDS, byte_codes};
use super::contract::{ContractConfig, UnitConfig};
use super::decode::RUN;
use super::delta::{entry, entry_of};
use super::env::{Buffers, is_wgsl, put};
use super::gemv_floats::part_products;
use super::gemv_inputs::input_pair_of;
use super::gemv_place::{Place, row_address, unit_number};
use super::reduce::together;
use super::scales::number_of;
use cubecl::prelude::*;
use rusty_loader::Format;
use rusty_loader::formats::Codec;

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

/// The unit's runs of an input row.
#[derive(CubeType)]
pub struct ByteInputs {
    /// Bytes, [`WORDS`] for each run.
    words: Array<u32>,
    /// Scales of the runs.
    scales: Array<f32>,
    /// Sums of their bytes.
    sums: Array<f32>,
}

/// The input from block `block` on, `here` blocks of it, as bytes where each unit looks for its runs:
/// `[block][run of the unit][word][unit]`. Its squares are added to `squares[0]`. All units of the cube must call it together.
///
/// Four units make a run where planes let them find the largest magnitude together, else one does.
#[cube]
pub fn make_bytes(
    buffers: &Buffers<'_>,
    segment: &Shared<[u32]>,
    squares: &mut Array<f32>,
    row: u32,
    block: u32,
    here: u32,
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
        let mut values = Array::<f32>::new(comptime!(share as usize));
        #[unroll]
        for i in 0..comptime!(share as usize / 2) {
            let at = block * lanes + lane + comptime!(i as u32 * 2);
            let (low, high, square) = input_pair_of(buffers, row, at, comptime!(config.clone()));
            values[comptime!(i * 2)] = low;
            values[comptime!(i * 2 + 1)] = high;
            squares[0] += square;
        }
        let made = rounded(&values, comptime!(share as usize));
        let of_block = lane % lanes;
        let of_unit = of_block % width;
        let run = lane / lanes * comptime!(config.runs()) + of_unit / RUN as u32;
        let at = run * comptime!(RUN_WORDS * stride) + of_block / width;
        let first = of_unit % RUN as u32 / 4;
        #[unroll]
        for w in 0..comptime!(share as usize / 4) {
            put(
                segment,
                at + (first + comptime!(w as u32)) * stride,
                made.words[w],
            );
        }
        if first == 0 {
            let (scale, sum) = comptime!((SCALE * stride, SUM * stride));
            put(segment, at + scale, u32::reinterpret(made.scale));
            put(segment, at + sum, u32::reinterpret(made.sum));
        }
        maker += config.team.units;
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
    let mut words = Array::<u32>::new(comptime!(runs * WORDS));
    let mut scales = Array::<f32>::new(runs);
    let mut sums = Array::<f32>::new(runs);
    #[unroll]
    for r in 0..runs {
        let run = b * comptime!(runs as u32) + comptime!(r as u32);
        let at = run * comptime!(RUN_WORDS * stride) + inner;
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

/// Of each part whether the row's adapter changes its inputs by factors.
#[cube]
pub fn gained_parts(
    buffers: &Buffers<'_>,
    row: u32,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) -> Array<u32> {
    let mut gained = Array::<u32>::new(comptime!(unit.parts.len()));
    if let Some(adapters) = comptime!(config.adapters.filter(|_| config.bytes)) {
        #[unroll]
        for p in 0..comptime!(unit.parts.len()) {
            let part = comptime!(unit.parts[p] as u32).runtime();
            let entry = entry_of(buffers, row, part, adapters);
            gained[p] = buffers.pool[(entry + entry::GAIN_IN) as usize];
        }
    }
    gained
}

/// Adds the products of the unit's runs of a block with all parts' weights. Inputs that an adapter's factors change are floats
/// again.
#[cube]
pub fn byte_block(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &ByteInputs,
    gained: &Array<u32>,
    place: &Place,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
) {
    #[unroll]
    for p in 0..comptime!(unit.parts.len()) {
        match comptime!(config.adapters) {
            Some(_) => {
                if gained[p] > 0 {
                    let floats = as_floats(x, comptime!(config.clone()));
                    part_products(
                        buffers,
                        sums,
                        &floats,
                        place,
                        comptime!(config.clone()),
                        comptime!(unit.clone()),
                        p,
                    );
                } else {
                    byte_products(
                        buffers,
                        sums,
                        x,
                        place,
                        comptime!(config.clone()),
                        comptime!(unit.clone()),
                        p,
                    );
                }
            }
            None => byte_products(
                buffers,
                sums,
                x,
                place,
                comptime!(config.clone()),
                comptime!(unit.clone()),
                p,
            ),
        }
    }
}

/// Adds the products of the unit's runs of a block with one part's weights, as bytes.
#[cube]
fn byte_products(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &ByteInputs,
    place: &Place,
    #[comptime] config: ContractConfig,
    #[comptime] unit: UnitConfig,
    #[comptime] p: usize,
) {
    let part = comptime!(config.parts[unit.parts[p]]);
    #[unroll]
    for l in 0..comptime!(config.lanes as usize) {
        let row = row_address(buffers, place, comptime!(unit.arg), part, l);
        let number = unit_number(place.block, comptime!(config.clone()));
        if let Format::Blocks(codec) = comptime!(part.format) {
            // A unit's runs lie in one block.
            let units = comptime!(codec.block_len as u32 / config.width());
            let block = row + number / units * comptime!(codec.block_bytes as u32);
            let first = number % units * config.width();
            let shared = comptime!(codec.group.is_multiple_of(config.width() as usize));
            let mut scales = Array::<f32>::new(2usize);
            #[unroll]
            for r in 0..comptime!(config.runs() as usize) {
                let own = first + comptime!((r * RUN) as u32);
                if comptime!(r == 0 || !shared) {
                    read_scales(buffers, &mut scales, block, own, codec);
                }
                let product = byte_product(buffers, block, own, &scales, x, r, codec);
                sums[comptime!(l * unit.parts.len() + p)] += product;
            }
        }
    }
}

/// The same as floats, for what adapters' factors change.
#[cube]
fn as_floats(x: &ByteInputs, #[comptime] config: ContractConfig) -> Array<f32> {
    let width = comptime!(config.width() as usize);
    let mut floats = Array::<f32>::new(width);
    #[unroll]
    for i in 0..width {
        let up = comptime!(24 - i as u32 % 4 * 8);
        let byte = i32::reinterpret(x.words[comptime!(i / 4)] << up) >> 24;
        floats[i] = f32::cast_from(byte) * x.scales[comptime!(i / RUN)];
    }
    floats
}

/// Reads what levels of the group in which element `first` of a block lies are multiplied with, and what is subtracted then.
#[cube]
fn read_scales(
    buffers: &Buffers<'_>,
    scales: &mut Array<f32>,
    block: u32,
    first: u32,
    #[comptime] codec: &'static Codec,
) {
    let group = first / comptime!(codec.group as u32);
    scales[0] = number_of(buffers.weights, block, group, codec, comptime!(codec.scale));
    if let Some(min) = comptime!(codec.min) {
        scales[1] = number_of(buffers.weights, block, group, codec, min);
    }
}

/// The product of the run of a block whose first element is `first` with the unit's run `r` of the input.
#[cube]
fn byte_product(
    buffers: &Buffers<'_>,
    block: u32,
    first: u32,
    scales: &Array<f32>,
    x: &ByteInputs,
    #[comptime] r: usize,
    #[comptime] codec: &'static Codec,
) -> f32 {
    let codes = byte_codes(buffers.weights, block, first, codec);
    // Whole numbers below 2^24, so these sums are exact.
    let mut levels = f32::cast_from(dot_bytes(&codes, &x.words, comptime!(r * WORDS)));
    let offset = comptime!(ByteCodes::of(codec).map_or(0, |c| c.offset));
    if comptime!(offset != 0) {
        levels -= x.sums[r] * comptime!(offset as f32);
    }
    let mut product = levels * scales[0];
    if comptime!(codec.min.is_some()) {
        product -= x.sums[r] * scales[1];
    }
    product * x.scales[r]
}

/// The sum of the products of sixteen signed bytes with those of the words from `from` on.
#[cube]
fn dot_bytes(codes: &Array<u32>, x: &Array<u32>, #[comptime] from: usize) -> i32 {
    let wgsl = is_wgsl();
    if comptime!(wgsl) {
        // What is `dot` here becomes a product of bytes in the text, see `bytewise` there.
        let mut left = Vector::<i32, Const<4>>::empty();
        let mut right = Vector::<i32, Const<4>>::empty();
        #[unroll]
        for w in 0..WORDS {
            left.insert(w, i32::reinterpret(codes[w]));
            right.insert(w, i32::reinterpret(x[comptime!(from + w)]));
        }
        left.dot(right)
    } else {
        let mut sum = 0i32.runtime();
        #[unroll]
        for w in 0..WORDS {
            let (left, right) = (codes[w], x[comptime!(from + w)]);
            sum = dp4a(i32::reinterpret(left), i32::reinterpret(right), sum);
        }
        sum
    }
}
