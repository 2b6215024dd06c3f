//! Host encoders (quantizers): f32 rows into stored rows.
//!
//! Where ggml's reference quantizer is a plain formula (`quantize_row_q4_0_ref` and its like in `ggml-quants.c`), these
//! give its bytes. Formats whose scales are searched for (K-quants, IQ4_NL, IQ4_XS) are encoded by [`search`](super::search);
//! I-quants with grids, IQ1 and NVFP4 have no encoder.

use half::{bf16, f16};

use super::search::{affine_block, searched_block};
use super::{Codec, Format, Levels, MAX_BLOCK_LEN, Part, Q4_0, Q8_0, Unit};

/// Encodes one block of values, with the importance of each where it is known.
type EncodeBlock = fn(&Codec, &[f32], Option<&[f32]>, &mut [u8]);

/// Encodes values in a format.
#[derive(Clone, Copy, Debug)]
pub struct Encoder(Method);

#[derive(Clone, Copy, Debug)]
enum Method {
    /// Whole rows by one function.
    Rows(fn(values: &[f32], out: &mut [u8])),
    /// Block by block; whether importance counts.
    Blocks(&'static Codec, EncodeBlock, bool),
}

impl Encoder {
    /// Whether it looks at the importance of columns.
    pub fn uses_importance(&self) -> bool {
        matches!(self.0, Method::Blocks(_, _, true))
    }

    /// Encodes a whole number of blocks into [`Format::row_bytes`] of output; surplus values or bytes are left alone.
    pub fn rows(&self, values: &[f32], out: &mut [u8]) {
        self.row(values, None, out);
    }

    /// The same for one row whose columns matter more or less (`importance` holds one number for each, about the mean
    /// square of the inputs that they are multiplied with).
    pub fn row(&self, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        match self.0 {
            Method::Rows(encode) => encode(values, out),
            Method::Blocks(codec, encode, _) => {
                let blocks = values.chunks_exact(codec.block_len);
                let outs = out.chunks_exact_mut(codec.block_bytes);
                for (i, (values, out)) in blocks.zip(outs).enumerate() {
                    let range = i * codec.block_len..(i + 1) * codec.block_len;
                    encode(codec, values, importance.and_then(|w| w.get(range)), out);
                }
            }
        }
    }
}

impl Format {
    /// The encoder of this format, or `None` where there is none.
    pub fn encoder(self) -> Option<Encoder> {
        Some(Encoder(match self {
            Format::F32 => Method::Rows(encode_f32),
            Format::F16 => Method::Rows(encode_f16),
            Format::Bf16 => Method::Rows(encode_bf16),
            Format::Blocks(c) if *c == Q8_0 => Method::Rows(encode_q8_0),
            Format::Blocks(c) if *c == Q4_0 => Method::Rows(encode_q4_0),
            Format::Blocks(c) => {
                let (encode, weighted) = c.block_encoder()?;
                Method::Blocks(c, encode, weighted)
            }
        }))
    }

    /// Values as stored bytes; none where there is no encoder or they are no whole number of blocks.
    pub fn encode(self, values: &[f32]) -> Option<Vec<u8>> {
        let encoder = self.encoder()?;
        if !values.len().is_multiple_of(self.block_len()) {
            return None;
        }
        let mut bytes = vec![0; self.row_bytes(values.len())];
        encoder.rows(values, &mut bytes);
        Some(bytes)
    }
}

impl Codec {
    /// The encoder of a block, and whether importance counts.
    fn block_encoder(&self) -> Option<(EncodeBlock, bool)> {
        // Other formats are others' to write.
        self.ggml_type?;
        let plain = self.codes.iter().all(|p| matches!(p, Part::Bits(_)));
        let ternary = matches!(self.codes, [Part::Trits(_)]) || self.group == 256;
        let encode: EncodeBlock = match (self.levels, self.scale.unit, &self.min) {
            (Levels::Offset(1), Unit::F16(_), None) if ternary => encode_ternary,
            (Levels::Table(_), Unit::HalfE8M0(_), None) if plain => encode_power_of_two,
            (Levels::Offset(_), Unit::F16(_), None) if plain && self.scale.steps.is_none() => {
                encode_extreme
            }
            (Levels::Offset(0), Unit::F16(_), Some(min)) if plain && min.steps.is_none() => {
                affine_block
            }
            (Levels::Offset(_), Unit::F16(_), _) if plain => return Some((searched_block, true)),
            (Levels::Table(levels), Unit::F16(_), _) if plain && levels.is_sorted() => {
                return Some((searched_block, true));
            }
            _ => return None,
        };
        Some((encode, false))
    }

    /// The highest code.
    pub(super) const fn top_code(&self) -> i32 {
        (1 << self.code_bits()) - 1
    }
}

/// The value farthest from zero becomes code 0, so the scale carries its sign.
fn encode_extreme(c: &Codec, values: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    let Levels::Offset(zero) = c.levels else {
        return;
    };
    let (mut peak, mut extreme) = (0f32, 0f32);
    for &v in values {
        if peak < v.abs() {
            (peak, extreme) = (v.abs(), v);
        }
    }
    let d = extreme / -zero as f32;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let code = |v: f32| ((v * inverse + zero as f32 + 0.5) as i32).min(c.top_code());
    c.store(out, |i| code(values[i]) as u8);
    c.scale.unit.write(out, 0, d);
}

/// -1, 0 or 1 times the largest magnitude.
fn encode_ternary(c: &Codec, values: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    let d = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    c.store(out, |i| (round(values[i] * inverse) + 1) as u8);
    c.scale.unit.write(out, 0, d);
}

/// The power of two two binary orders below the largest magnitude's, and the nearest levels (OCP Microscaling Formats
/// 1.0, 6.3).
fn encode_power_of_two(c: &Codec, values: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    let peak = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let exponent = match peak > 0.0 {
        true => (peak.log2().floor().min(300.0) as i32 - 2 + 127).clamp(0, 255),
        false => 0,
    };
    if let Unit::HalfE8M0(field) = &c.scale.unit {
        field.write(out, 0, exponent as u32);
    }
    let d = c.scale.unit.at(out, 0);
    let error = |v: f32, code: u8| (d * c.level(code) - v).abs();
    c.store(out, |i| {
        let nearest = |best: u8, code: u8| match error(values[i], code) < error(values[i], best) {
            true => code,
            false => best,
        };
        (1..=c.top_code() as u8).fold(0, nearest)
    });
}

impl Codec {
    /// Overwrites the codes of a block.
    pub(super) fn store(&self, block: &mut [u8], code: impl Fn(usize) -> u8) {
        let mut codes = [0u8; MAX_BLOCK_LEN];
        let codes = &mut codes[..self.block_len];
        codes.iter_mut().enumerate().for_each(|(i, c)| *c = code(i));
        for part in self.codes {
            part.scatter(block, codes);
        }
    }
}

fn encode_f32(values: &[f32], out: &mut [u8]) {
    for (v, o) in values.iter().zip(out.as_chunks_mut::<4>().0) {
        *o = v.to_le_bytes();
    }
}

fn encode_f16(values: &[f32], out: &mut [u8]) {
    for (v, o) in values.iter().zip(out.as_chunks_mut::<2>().0) {
        *o = f16::from_f32(*v).to_le_bytes();
    }
}

fn encode_bf16(values: &[f32], out: &mut [u8]) {
    for (v, o) in values.iter().zip(out.as_chunks_mut::<2>().0) {
        *o = bf16::from_f32(*v).to_le_bytes();
    }
}

fn encode_q8_0(values: &[f32], out: &mut [u8]) {
    let blocks = values.as_chunks::<32>().0;
    for (values, out) in blocks.iter().zip(out.as_chunks_mut::<34>().0) {
        let peak = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let d = peak / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
        for (o, v) in out[2..].iter_mut().zip(values) {
            *o = round(v * inverse) as i8 as u8;
        }
    }
}

/// `roundf` (halves away from zero) for small numbers, in operations that every vector unit has.
fn round(x: f32) -> i32 {
    // Far from overflow, whatever the value.
    let x = x.clamp(-1e6, 1e6);
    let whole = x as i32;
    let rest = x - whole as f32;
    whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)
}

fn encode_q4_0(values: &[f32], out: &mut [u8]) {
    let blocks = values.as_chunks::<32>().0;
    for (values, out) in blocks.iter().zip(out.as_chunks_mut::<18>().0) {
        // The value farthest from zero becomes code 0 (= -8), so the scale carries its sign.
        let (mut peak, mut extreme) = (0f32, 0f32);
        for &v in values {
            if peak < v.abs() {
                peak = v.abs();
                extreme = v;
            }
        }
        let d = extreme / -8.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
        let code = |v: f32| ((v * inverse + 8.5) as i8).min(15) as u8;
        for (i, o) in out[2..].iter_mut().enumerate() {
            *o = code(values[i]) | code(values[i + 16]) << 4;
        }
    }
}
