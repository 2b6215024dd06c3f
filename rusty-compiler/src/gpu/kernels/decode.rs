//! Dequantization, expanded from a format's description.
//!
//! The unit is a *run* of [`RUN`] elements of a row, which share a scale: a few word reads for their
//! [codes](super::codes), one [scale](super::scales) and straight-line arithmetic. The reads may touch the word
//! behind a block, so buffers of weights end with [`PADDING`] spare bytes.

use super::bits::{f16_value, half_at};
use super::codes::{code_of, level_of, run_codes};
use super::env::Buffers;
use super::scales::number_of;
use cubecl::prelude::*;
use rusty_loader::Format;
use rusty_loader::formats::{Codec, Levels};

pub use crate::plan::byte_codes::RUN;

/// Bytes that follow the last row in a buffer of weights.
pub const PADDING: usize = 16;

/// Decodes run `run` of the row that starts at byte `row` into `out`. Elements past the row's end are zero
/// where `len` is no multiple of the run.
#[cube]
pub fn decode_run(
    buffers: &Buffers<'_>,
    row: u32,
    run: u32,
    out: &mut Array<f32>,
    #[comptime] format: Format,
    #[comptime] len: u32,
) {
    let words = buffers.weights;
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
            decode_blocks(buffers, row, run, out, codec);
        }
    }
}

/// Decodes the chunks of a unit's run, of plain floats: the first starts at element `first`, each other one `stride` elements
/// behind the one before. `wide`: eight halves or four single floats lie where one read takes them.
#[cube]
pub fn decode_chunks(
    buffers: &Buffers<'_>,
    row: u32,
    first: u32,
    #[comptime] stride: u32,
    out: &mut Array<f32>,
    #[comptime] format: Format,
    #[comptime] chunk: usize,
    #[comptime] wide: bool,
) {
    let per_word = comptime!(if format == Format::F32 { 1 } else { 2 });
    let words = comptime!(chunk / per_word);
    #[unroll]
    for c in 0..comptime!(RUN / chunk) {
        let element = first + comptime!(c as u32 * stride);
        let at = (row >> 2) + element / comptime!(per_word as u32);
        let mut read = Array::<u32>::new(words);
        if comptime!(wide && words == 4) {
            let fours = buffers
                .weights
                .as_vectorized()
                .with_vector_size::<Const<4>>();
            let four = fours[(at / 4) as usize];
            #[unroll]
            for w in 0..4usize {
                read[w] = four.extract(w);
            }
        } else {
            #[unroll]
            for w in 0..words {
                read[w] = buffers.weights[(at + w as u32) as usize];
            }
        }
        #[unroll]
        for w in 0..words {
            let word = read[w];
            let to = comptime!(c * chunk + w * per_word);
            match format {
                Format::F32 => out[to] = f32::reinterpret(word),
                Format::F16 => {
                    out[to] = f16_value(word & 0xffff);
                    out[comptime!(to + 1)] = f16_value(word >> 16);
                }
                _ => {
                    out[to] = f32::reinterpret(word << 16);
                    out[comptime!(to + 1)] = f32::reinterpret(word & 0xffff_0000);
                }
            }
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
    buffers: &Buffers<'_>,
    row: u32,
    run: u32,
    out: &mut Array<f32>,
    #[comptime] codec: &'static Codec,
) {
    let line = run_numbers(buffers, row, run, out, codec);
    #[unroll]
    for i in 0..RUN {
        out[i] = line.slope * out[i] - line.less;
    }
}

/// Reads run `run` of the row that starts at byte `row`: numbers, and what makes them values.
#[cube]
pub fn read_run(
    buffers: &Buffers<'_>,
    row: u32,
    run: u32,
    numbers: &mut Array<f32>,
    #[comptime] format: Format,
    #[comptime] len: u32,
) -> Line {
    if let Format::Blocks(codec) = format {
        run_numbers(buffers, row, run, numbers, codec)
    } else {
        decode_run(buffers, row, run, numbers, format, len);
        Line {
            slope: 1.0f32.runtime(),
            less: 0.0f32.runtime(),
        }
    }
}

/// The product of what was read of a run with the inputs from `x[from]` on, whose sum is `total`.
#[cube]
pub fn run_product(
    numbers: &Array<f32>,
    line: &Line,
    x: &Array<f32>,
    total: f32,
    #[comptime] from: usize,
    #[comptime] format: Format,
) -> f32 {
    if comptime!(matches!(format, Format::Blocks(_))) {
        line.slope * dot(numbers, x, from) - line.less * total
    } else {
        dot(numbers, x, from)
    }
}

/// The product of a run's values with the inputs from `x[from]` on.
#[cube]
pub fn dot(numbers: &Array<f32>, x: &Array<f32>, #[comptime] from: usize) -> f32 {
    let mut sum = 0.0f32;
    #[unroll]
    for i in 0..RUN {
        sum += numbers[i] * x[comptime!(from + i)];
    }
    sum
}

/// The sum of a run's inputs from `x[from]` on, where [`run_product()`] needs it.
#[cube]
pub fn run_total(x: &Array<f32>, #[comptime] from: usize, #[comptime] format: Format) -> f32 {
    let mut total = 0.0f32;
    if comptime!(matches!(format, Format::Blocks(_))) {
        #[unroll]
        for i in 0..RUN {
            total += x[comptime!(from + i)];
        }
    }
    total
}

/// What makes numbers values: `slope * number - less`.
#[derive(CubeType)]
pub struct Line {
    slope: f32,
    less: f32,
}

/// Numbers of a run. Where levels are codes less a constant, they are `1 + code / 2^bits`: the code's bits are the upper ones of
/// the mantissa, which takes no conversion. Elsewhere they are the levels.
#[cube]
fn run_numbers(
    buffers: &Buffers<'_>,
    row: u32,
    run: u32,
    numbers: &mut Array<f32>,
    #[comptime] codec: &'static Codec,
) -> Line {
    let runs = comptime!((codec.block_len / RUN) as u32);
    let block = row + (run / runs) * comptime!(codec.block_bytes as u32);
    let first = (run % runs) * RUN as u32;
    let mantissa = comptime!(Mantissa::of(codec));
    let mut codes = Array::<u32>::new(RUN);
    #[unroll]
    for i in 0..RUN {
        codes[i] = comptime!(mantissa.map_or(0, |m| m.start)).runtime();
    }
    let up = comptime!(mantissa.map_or(0, |m| m.up));
    run_codes(buffers, block, first, &mut codes, up, codec);
    #[unroll]
    for i in 0..RUN {
        numbers[i] = if comptime!(mantissa.is_some()) {
            f32::reinterpret(codes[i])
        } else {
            level_of(codes[i], codec)
        };
    }
    let group = first / comptime!(codec.group as u32);
    let scale = number_of(buffers.weights, block, group, codec, comptime!(codec.scale));
    let mut line = Line {
        slope: scale,
        less: 0.0f32,
    };
    if let Some(mantissa) = comptime!(mantissa) {
        line.slope = scale * mantissa.levels;
        line.less = scale * mantissa.less;
    }
    if let Some(min) = comptime!(codec.min) {
        line.less += number_of(buffers.weights, block, group, codec, min);
    }
    line
}

/// How codes stand in the mantissas of floats from 1 to 2, where levels are codes less a constant.
#[derive(Clone, Copy, Debug)]
struct Mantissa {
    /// Place of a code's lowest bit.
    up: u32,
    /// A float before the code's bits are flipped in: 1, or 1.5 where the highest bit is a sign.
    start: u32,
    /// `level = levels * number - less`.
    levels: f32,
    less: f32,
}

impl Mantissa {
    fn of(codec: &Codec) -> Option<Self> {
        let bits = codec.code_bits();
        let (one, half) = (1.0f32.to_bits(), 1u32 << 22);
        let (start, offset) = match codec.levels {
            Levels::Offset(by) => (one, by),
            Levels::Signed => (one | half, 1 << (bits - 1)),
            _ => return None,
        };
        let levels = (1u32 << bits) as f32;
        Some(Self {
            up: 23 - bits,
            start,
            levels,
            less: levels + offset as f32,
        })
    }
}

/// Element `index` of the row that starts at byte `row`.
#[cube]
pub fn decode_one(buffers: &Buffers<'_>, row: u32, index: u32, #[comptime] format: Format) -> f32 {
    let words = buffers.weights;
    match format {
        Format::F32 => f32::reinterpret(words[((row >> 2) + index) as usize]),
        Format::F16 => f16_value(half_at(words, row + index * 2)),
        Format::Bf16 => f32::reinterpret(half_at(words, row + index * 2) << 16),
        Format::Blocks(codec) => {
            let length = comptime!(codec.block_len as u32);
            let block = row + (index / length) * comptime!(codec.block_bytes as u32);
            let element = index % length;
            let group = element / comptime!(codec.group as u32);
            let scale = number_of(words, block, group, codec, comptime!(codec.scale));
            let value = scale * level_of(code_of(buffers, block, element, codec), codec);
            if let Some(min) = comptime!(codec.min) {
                value - number_of(words, block, group, codec, min)
            } else {
                value
            }
        }
    }
}
