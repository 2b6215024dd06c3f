//! Products of bytes in [the matrix-vector kernel](super::gemv): codes of weights with [inputs that are rounded](super::byte_inputs)
//! to bytes.
//!
//! A run of the input has a scale and its weights have theirs, so a run's product is a sum of whole numbers times both: four
//! multiplications an instruction, and no code becomes a float.

use super::byte_codes::{WORDS, byte_codes};
use super::byte_inputs::ByteInputs;
use super::contract::ContractConfig;
use super::decode::RUN;
use super::env::{Buffers, is_wgsl};
use super::gemv_place::{Place, row_address, unit_number};
use super::gemv_products::Span;
use super::scales::number_of;
use super::unit_lanes::AlikeUnits;
use crate::plan::byte_codes::ByteCodes;
use cubecl::prelude::*;
use rusty_loader::Format;
use rusty_loader::formats::Codec;

/// Adds the products of the unit's runs of a block with all parts' weights.
#[cube]
pub fn byte_block(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &ByteInputs,
    span: &Span<'_>,
    place: &Place,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    #[unroll]
    for p in 0..comptime!(alike.parts.len()) {
        let (settings, alike) = comptime!((config.clone(), alike.clone()));
        part_products(buffers, sums, x, span, place, settings, alike, p);
    }
}

/// Adds the products of the unit's runs of a block with one part's weights. Each weight's codes serve all rows.
#[cube]
fn part_products(
    buffers: &Buffers<'_>,
    sums: &mut Array<f32>,
    x: &ByteInputs,
    span: &Span<'_>,
    place: &Place,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
    #[comptime] p: usize,
) {
    let part = comptime!(alike.parts[p]);
    #[unroll]
    for l in 0..comptime!(config.lanes as usize) {
        let row = row_address(span.lanes, place, part, p, l);
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
                let codes = byte_codes(buffers.weights, block, own, codec);
                #[unroll]
                for m in 0..comptime!(config.cube_rows as usize) {
                    let run = comptime!(m * config.runs() as usize + r);
                    let product = run_product(&codes, &scales, x, run, codec);
                    sums[comptime!(config.sum(m, l, alike.parts.len()) + p)] += product;
                }
            }
        }
    }
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

/// The product of a run of weights with the unit's run `run` of the inputs.
#[cube]
fn run_product(
    codes: &Array<u32>,
    scales: &Array<f32>,
    x: &ByteInputs,
    #[comptime] run: usize,
    #[comptime] codec: &'static Codec,
) -> f32 {
    // Whole numbers below 2^24, so these sums are exact.
    let mut levels = f32::cast_from(dot_bytes(codes, &x.words, comptime!(run * WORDS)));
    let offset = comptime!(ByteCodes::of(codec).map_or(0, |c| c.offset));
    if comptime!(offset != 0) {
        levels -= x.sums[run] * comptime!(offset as f32);
    }
    let mut product = levels * scales[0];
    if comptime!(codec.min.is_some()) {
        product -= x.sums[run] * scales[1];
    }
    product * x.scales[run]
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
