//! Host decoding of stored rows, from the description alone.
//!
//! [`Codec::value`] follows the formula element by element (clear, the reference of the property tests),
//! [`Codec::decode_block`] takes all [codes](Codec::codes) first. No format has code of its own here.
//!
//! Products are associated as ggml does, `(d * sc) * level - dmin * m`, and never fused, so results are
//! bit-equal to it.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::codec::{BitField, Codec, Levels, Scale, Steps, Unit};
use super::gather::read;
use super::{ALL, Format, OF_CHECKPOINTS};

/// Longest block of any format, in elements.
pub const MAX_BLOCK_LEN: usize = 256;

impl Format {
    /// The format that users call `name` (any case), or `None`.
    pub fn by_name(name: &str) -> Option<Self> {
        let plain = [Format::F32, Format::F16, Format::Bf16];
        let blocks = ALL.iter().chain(OF_CHECKPOINTS);
        let blocks = blocks.map(|&c| Format::Blocks(c));
        plain
            .into_iter()
            .chain(blocks)
            .find(|f| f.name().eq_ignore_ascii_case(name))
    }

    /// The format with GGUF's tensor type number `id`, or `None` where it is not supported.
    pub fn by_ggml_type(id: u32) -> Option<Self> {
        match id {
            0 => Some(Format::F32),
            1 => Some(Format::F16),
            30 => Some(Format::Bf16),
            _ => ALL
                .iter()
                .find(|c| c.ggml_type == Some(id))
                .map(|&c| Format::Blocks(c)),
        }
    }

    /// GGUF's tensor type number, or `None` where GGUF has no such format.
    pub const fn ggml_type(self) -> Option<u32> {
        match self {
            Format::F32 => Some(0),
            Format::F16 => Some(1),
            Format::Bf16 => Some(30),
            Format::Blocks(c) => c.ggml_type,
        }
    }

    /// Decodes whole blocks: `bytes` holds [`Format::row_bytes`] of `out.len()` elements, little-endian.
    ///
    /// Any payload decodes without a failure; scales that are not finite give values that are not.
    ///
    /// # Panics
    /// Where the two lengths do not belong together.
    pub fn decode_row(self, bytes: &[u8], out: &mut [f32]) {
        assert!(
            out.len().is_multiple_of(self.block_len()) && bytes.len() == self.row_bytes(out.len()),
            "{} bytes do not hold {} elements of {}",
            bytes.len(),
            out.len(),
            self.name()
        );
        match self {
            Format::F32 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *o = f32::from_le_bytes(*b);
                }
            }
            Format::F16 => decode_f16(bytes, out),
            Format::Bf16 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *o = bf16::from_le_bytes(*b).to_f32();
                }
            }
            Format::Blocks(c) => {
                let blocks = bytes.chunks_exact(c.block_bytes);
                for (block, out) in blocks.zip(out.chunks_exact_mut(c.block_len)) {
                    c.decode_block(block, out);
                }
            }
        }
    }
}

fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    match bytemuck::try_cast_slice::<u8, f16>(bytes) {
        // Hardware conversion eight at a time; only little-endian hosts hold the file's order.
        Ok(halves) if cfg!(target_endian = "little") => halves.convert_to_f32_slice(out),
        _ => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = f16::from_le_bytes(*b).to_f32();
            }
        }
    }
}

impl Codec {
    /// What a code stands for.
    pub fn level(&self, code: u8) -> f32 {
        match self.levels {
            Levels::Offset(by) => (i32::from(code) - by) as f32,
            Levels::Signed => {
                let unused = 32 - self.code_bits();
                ((i32::from(code) << unused) >> unused) as f32
            }
            Levels::Table(levels) => f32::from(levels[usize::from(code) % levels.len()]),
            Levels::Floats(levels) => levels[usize::from(code % 16)],
            Levels::E4M3 => e4m3(code),
        }
    }

    /// Scale and minimum of group `g`: `value = scale * level - min`.
    pub fn group_scale(&self, block: &[u8], g: usize) -> (f32, f32) {
        let min = self.min.as_ref().map_or(0.0, |m| m.at(block, g));
        (self.scale.at(block, g), min)
    }

    /// Value of element `i`, by the formula.
    pub fn value(&self, block: &[u8], i: usize) -> f32 {
        let (scale, min) = self.group_scale(block, i / self.group);
        let product = scale * self.level(self.code(block, i));
        if self.min.is_some() {
            product - min
        } else {
            product
        }
    }

    /// Decodes one block of [`Codec::block_bytes`] into [`Codec::block_len`] values; bit-equal to
    /// [`Codec::value`].
    pub fn decode_block(&self, block: &[u8], out: &mut [f32]) {
        let mut buffer = [0u8; MAX_BLOCK_LEN];
        let codes = &mut buffer[..self.block_len];
        self.codes(block, codes);
        let unused = match self.levels {
            Levels::Signed => 32 - self.code_bits(),
            _ => 0,
        };
        let groups = codes.chunks_exact(self.group);
        for (g, (codes, out)) in groups.zip(out.chunks_exact_mut(self.group)).enumerate() {
            let (scale, min) = self.group_scale(block, g);
            let coded = out.iter_mut().zip(codes);
            match self.levels {
                Levels::Offset(by) => {
                    coded.for_each(|(o, &c)| *o = scale * (i32::from(c) - by) as f32)
                }
                Levels::Signed => {
                    coded.for_each(|(o, &c)| {
                        *o = scale * ((i32::from(c) << unused) >> unused) as f32
                    });
                }
                Levels::Table(levels) => {
                    let last = levels.len() - 1;
                    coded.for_each(|(o, &c)| *o = scale * f32::from(levels[usize::from(c) & last]));
                }
                Levels::Floats(levels) => {
                    coded.for_each(|(o, &c)| *o = scale * levels[usize::from(c & 15)]);
                }
                Levels::E4M3 => coded.for_each(|(o, &c)| *o = scale * e4m3(c)),
            }
            if self.min.is_some() {
                out.iter_mut().for_each(|o| *o -= min);
            }
        }
    }
}

/// An 8-bit float E4M3 (arXiv 2209.05433), whose two codes for no number are 480 here: the f16 with these bits is a 256th as
/// large, because its exponent counts from 15 instead of 7, subnormals included.
pub fn e4m3(code: u8) -> f32 {
    let bits = u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7;
    f16::from_bits(bits).to_f32() * 256.0
}

impl Scale {
    /// The scale of group `g` of a block.
    pub fn at(&self, block: &[u8], g: usize) -> f32 {
        let unit = self.unit.at(block, g);
        match &self.steps {
            None => unit * self.factor,
            Some(steps) => unit * steps.at(block, g) as f32 * self.factor,
        }
    }
}

impl Unit {
    /// The unit of group `g` of a block.
    pub fn at(&self, block: &[u8], g: usize) -> f32 {
        match self {
            // Nearly all: a number at a byte of its own.
            Unit::F16([field]) if field.bits == 16 && field.first.is_multiple_of(8) => {
                let at = field.locate(g) / 8;
                f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
            }
            Unit::F16(fields) => f16::from_bits(read(fields, block, g) as u16).to_f32(),
            Unit::HalfE8M0(field) => match field.read(block, g) {
                // Powers below 2^-126 are subnormal.
                e @ 0..2 => f32::from_bits(0x0020_0000 << e),
                e => f32::from_bits((e - 1) << 23),
            },
            Unit::F32First => f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            Unit::E4M3(field) => match field.read(block, g) {
                0x7f => 0.0,
                code => e4m3(code as u8),
            },
        }
    }
}

impl Steps {
    /// The whole number of group `g` of a block.
    pub fn at(&self, block: &[u8], g: usize) -> i32 {
        self.number(read(self.fields, block, g))
    }

    /// The whole number that a code stands for.
    pub fn number(&self, code: u32) -> i32 {
        let code = if self.signed {
            i32::from(code as u8 as i8)
        } else {
            code as i32
        };
        self.times * code + self.plus
    }
}

impl Unit {
    /// Overwrites the unit of group `g`, as near as its encoding comes.
    pub fn write(&self, block: &mut [u8], g: usize, value: f32) {
        let (fields, number): (&[BitField], u32) = match self {
            Unit::F32First => {
                block[..4].copy_from_slice(&value.to_le_bytes());
                return;
            }
            Unit::F16(fields) => (fields, f16::from_f32(value).to_bits().into()),
            Unit::HalfE8M0(field) => (&[*field], (value.abs().to_bits() >> 23) + 1),
            // The bits of the f16 a 256th as large, without its last seven.
            Unit::E4M3(field) => {
                let bits = f16::from_f32(value.abs() / 256.0).to_bits() >> 7;
                (&[*field], u32::from(bits).clamp(1, 0x7e))
            }
        };
        fields.iter().for_each(|f| f.write(block, g, number));
    }
}

impl Steps {
    /// Bits of a code.
    pub fn width(&self) -> u32 {
        let ends = self.fields.iter().map(|f| f.place + f.bits);
        ends.max().unwrap_or(0)
    }

    /// The least and the largest number.
    pub fn range(&self) -> (i32, i32) {
        let width = self.width();
        let ends = match self.signed {
            true => [1u32 << (width - 1), (1 << (width - 1)) - 1],
            false => [0, (1 << width) - 1],
        };
        let [a, b] = ends.map(|code| self.number(code));
        (a.min(b), a.max(b))
    }

    /// Overwrites the number of group `g`, which lies in [`Steps::range`].
    pub fn write(&self, block: &mut [u8], g: usize, number: i32) {
        let code = ((number - self.plus) / self.times) as u32;
        self.fields.iter().for_each(|f| f.write(block, g, code));
    }
}
