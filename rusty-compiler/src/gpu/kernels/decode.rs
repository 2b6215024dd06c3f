//! Dequantization, expanded from a format's description.
//!
//! The unit is a *run* of [`RUN`] elements of a row: in every block format the bits of a run lie in
//! consecutive bytes at one shift per field, and its elements share a scale. A run therefore costs a few
//! word reads, one scale and straight-line arithmetic. The reads may touch the word behind a block, so buffers
//! of weights end with [`PADDING`] spare bytes.

use super::bits::{byte_at, f16_value, half_at};
use cubecl::prelude::*;
use rusty_loader::Format;
use rusty_loader::formats::{BitField, Codec, ScaleRule};

/// Elements decoded together.
pub const RUN: usize = 16;

/// Bytes that follow the last row in a buffer of weights.
pub const PADDING: usize = 16;

/// Whether rows of this format can be decoded by runs: the bits of a run are consecutive bytes at one shift,
/// under one scale.
pub fn decodes(format: Format) -> bool {
    match format {
        Format::F32 | Format::F16 | Format::Bf16 => true,
        Format::Blocks(codec) => {
            let scaled = match codec.scales {
                ScaleRule::Block { .. } => true,
                ScaleRule::PackedK { .. } => codec.block_len == 256,
                ScaleRule::I8Groups { group, .. } => group % RUN == 0,
            };
            scaled && codec.block_len % RUN == 0 && codec.fields.iter().all(|f| f.lanes % RUN == 0)
        }
    }
}

/// Decodes run `run` of the row that starts at byte `row` into `out`. Elements past the row's end are zero
/// where `len` is no multiple of the run.
#[cube]
pub fn decode_run(
    words: &[u32],
    row: u32,
    run: u32,
    out: &mut Array<f32>,
    #[comptime] format: Format,
    #[comptime] len: u32,
) {
    match format {
        Format::F32 =>
        {
            #[unroll]
            for i in 0..RUN {
                let element = run * RUN as u32 + i as u32;
                let word = words[((row >> 2) + element) as usize];
                out[i] = keep(f32::reinterpret(word), element, len);
            }
        }
        Format::F16 =>
        {
            #[unroll]
            for i in 0..RUN {
                let element = run * RUN as u32 + i as u32;
                out[i] = keep(f16_value(half_at(words, row + element * 2)), element, len);
            }
        }
        Format::Bf16 =>
        {
            #[unroll]
            for i in 0..RUN {
                let element = run * RUN as u32 + i as u32;
                let half = half_at(words, row + element * 2);
                out[i] = keep(f32::reinterpret(half << 16), element, len);
            }
        }
        Format::Blocks(codec) => {
            decode_blocks(words, row, run, out, codec);
        }
    }
}

/// Zero past the row's end: the next row's bits may be infinite.
#[cube]
fn keep(value: f32, element: u32, #[comptime] len: u32) -> f32 {
    if comptime!((len as usize).is_multiple_of(RUN)) {
        value
    } else {
        select(element < len, value, 0.0f32)
    }
}

#[cube]
fn decode_blocks(
    words: &[u32],
    row: u32,
    run: u32,
    out: &mut Array<f32>,
    #[comptime] codec: &'static Codec,
) {
    let runs = comptime!((codec.block_len / RUN) as u32);
    let block = row + (run / runs) * comptime!(codec.block_bytes as u32);
    let within = run % runs;
    let mut codes = Array::<u32>::new(RUN);
    #[unroll]
    for f in 0..comptime!(codec.fields.len()) {
        gather_bits(
            words,
            block,
            within,
            &mut codes,
            comptime!(codec.fields[f]),
            comptime!(codec.block_bytes),
        );
    }
    let scale = scale_of(words, block, within, codec);
    let minimum = minimum_of(words, block, within, codec);
    #[unroll]
    for i in 0..RUN {
        let code = signed_code(codes[i], codec);
        out[i] = scale * code - minimum;
    }
}

/// Adds one field's bits of a run to its codes.
#[cube]
fn gather_bits(
    words: &[u32],
    block: u32,
    within: u32,
    codes: &mut Array<u32>,
    #[comptime] field: BitField,
    #[comptime] block_bytes: usize,
) {
    let first = within * RUN as u32;
    let lanes = comptime!(field.lanes as u32);
    let per = comptime!(field.lanes as u32 * 8 / field.bits);
    let rest = first % per;
    let start = block + comptime!(field.offset as u32) + (first / per) * lanes + rest % lanes;
    let shift = (rest / lanes) * comptime!(field.bits);
    let index = (start >> 2) as usize;
    let offset = (start & 3) * 8;
    let aligned = comptime!(block_bytes.is_multiple_of(4) && field.offset.is_multiple_of(4));
    let mut next = words[index];
    #[unroll]
    for w in 0..comptime!(RUN / 4) {
        let mut word = next;
        if comptime!(!aligned) {
            next = words[comptime!(w + 1) + index];
            // In two shifts, because one by 32 is undefined.
            word = (word >> offset) | ((next << 1) << (31 - offset));
        } else if comptime!(w + 1 < RUN / 4) {
            next = words[comptime!(w + 1) + index];
        }
        #[unroll]
        for j in 0..4usize {
            let bits =
                (word >> (shift + comptime!(j as u32 * 8))) & comptime!((1u32 << field.bits) - 1);
            codes[comptime!(w * 4 + j)] |= bits << comptime!(field.place);
        }
    }
}

/// A code as a number: sign-extended, biased.
#[cube]
fn signed_code(code: u32, #[comptime] codec: &'static Codec) -> f32 {
    let width = comptime!(
        codec
            .fields
            .iter()
            .map(|f| f.bits + f.place)
            .max()
            .unwrap_or(0)
    );
    if comptime!(codec.signed) {
        let up = comptime!(32 - width);
        f32::cast_from(i32::reinterpret(code << up) >> comptime!(up as i32))
    } else {
        f32::cast_from(code) - comptime!(codec.bias as f32)
    }
}

/// The scale of a run.
#[cube]
fn scale_of(words: &[u32], block: u32, within: u32, #[comptime] codec: &'static Codec) -> f32 {
    match comptime!(codec.scales) {
        ScaleRule::Block { d } => f16_value(half_at(words, block + comptime!(d as u32))),
        ScaleRule::PackedK { d, packed, .. } => {
            let super_scale = f16_value(half_at(words, block + comptime!(d as u32)));
            let code = packed_code(words, block + comptime!(packed as u32), within / 2, 0u32);
            super_scale * f32::cast_from(code)
        }
        ScaleRule::I8Groups { d, scales, group } => {
            let super_scale = f16_value(half_at(words, block + comptime!(d as u32)));
            let index = within / comptime!((group / RUN) as u32);
            let byte = byte_at(words, block + comptime!(scales as u32) + index);
            super_scale * f32::cast_from(i32::reinterpret(byte << 24) >> 24)
        }
    }
}

/// What is subtracted after scaling.
#[cube]
fn minimum_of(words: &[u32], block: u32, within: u32, #[comptime] codec: &'static Codec) -> f32 {
    match comptime!(codec.scales) {
        ScaleRule::PackedK { dmin, packed, .. } => {
            let super_minimum = f16_value(half_at(words, block + comptime!(dmin as u32)));
            let code = packed_code(words, block + comptime!(packed as u32), within / 2, 4u32);
            super_minimum * f32::cast_from(code)
        }
        _ => 0.0f32.runtime(),
    }
}

/// The 6-bit scale (`at` 0) or minimum (`at` 4) of 32-element group `g` in K-quants' 12 bytes.
#[cube]
fn packed_code(words: &[u32], packed: u32, g: u32, at: u32) -> u32 {
    let low = byte_at(words, packed + at + (g & 3));
    let high = byte_at(words, packed + 8 + (g & 3));
    let nibble = (high >> at) & 0xf;
    select(g < 4, low & 0x3f, nibble | ((low >> 6) << 4))
}

/// Element `index` of the row that starts at byte `row`.
#[cube]
pub fn decode_one(words: &[u32], row: u32, index: u32, #[comptime] format: Format) -> f32 {
    match format {
        Format::F32 => f32::reinterpret(words[((row >> 2) + index) as usize]),
        Format::F16 => f16_value(half_at(words, row + index * 2)),
        Format::Bf16 => f32::reinterpret(half_at(words, row + index * 2) << 16),
        Format::Blocks(codec) => {
            let length = comptime!(codec.block_len as u32);
            let block = row + (index / length) * comptime!(codec.block_bytes as u32);
            let inner = index % length;
            let mut code = 0u32;
            #[unroll]
            for f in 0..comptime!(codec.fields.len()) {
                code |= field_of(words, block, inner, comptime!(codec.fields[f]));
            }
            let within = inner / RUN as u32;
            let scale = scale_of(words, block, within, codec);
            scale * signed_code(code, codec) - minimum_of(words, block, within, codec)
        }
    }
}

/// One field's bits of one element, in place.
#[cube]
fn field_of(words: &[u32], block: u32, inner: u32, #[comptime] field: BitField) -> u32 {
    let lanes = comptime!(field.lanes as u32);
    let per = comptime!(field.lanes as u32 * 8 / field.bits);
    let rest = inner % per;
    let address = block + comptime!(field.offset as u32) + (inner / per) * lanes + rest % lanes;
    let shift = (rest / lanes) * comptime!(field.bits);
    let bits = (byte_at(words, address) >> shift) & comptime!((1u32 << field.bits) - 1);
    bits << comptime!(field.place)
}
