//! Host encoders (quantizers): f32 rows into stored rows.
//!
//! Q8_0 and Q4_0 follow ggml's reference quantizers (`quantize_row_q8_0_ref`, `quantize_row_q4_0_ref` in
//! `ggml-quants.c`) byte for byte. Formats whose quantizer searches (K-quants) have none here.

use half::{bf16, f16};

use super::{Format, Q4_0, Q8_0};

/// Encodes whole blocks of values into exactly their stored bytes.
pub type Encoder = fn(values: &[f32], out: &mut [u8]);

impl Format {
    /// The encoder of this format, or `None` where there is none.
    ///
    /// It expects a whole number of blocks and [`Format::row_bytes`] of output; surplus values or bytes
    /// are left alone.
    pub fn encoder(self) -> Option<Encoder> {
        match self {
            Format::F32 => Some(encode_f32),
            Format::F16 => Some(encode_f16),
            Format::Bf16 => Some(encode_bf16),
            Format::Blocks(c) if *c == Q8_0 => Some(encode_q8_0),
            Format::Blocks(c) if *c == Q4_0 => Some(encode_q4_0),
            Format::Blocks(_) => None,
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
