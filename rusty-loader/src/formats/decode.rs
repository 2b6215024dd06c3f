//! Host decoding of stored rows, from the description alone.
//!
//! Two readings of one [`Codec`]: [`Codec::value`] follows the formula element by element (clear, the
//! reference of the property tests), [`Codec::decode_block`] walks the same fields chunk by chunk so that
//! the inner loops are plain byte loops the compiler vectorizes. No format has code of its own here.
//!
//! Products are associated as ggml does, `(d * sc) * code - dmin * m`, and never fused, so results are
//! bit-equal to it.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::codec::{BitField, Codec, ScaleRule};
use super::{ALL, Format};

/// Longest block of any format, in elements.
pub const MAX_BLOCK_LEN: usize = 256;

impl Format {
    /// The format that users call `name` (any case), or `None`.
    pub fn by_name(name: &str) -> Option<Self> {
        let plain = [Format::F32, Format::F16, Format::Bf16];
        let blocks = ALL.iter().map(|&c| Format::Blocks(c));
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
                .find(|c| c.ggml_type == id)
                .map(|&c| Format::Blocks(c)),
        }
    }

    /// GGUF's tensor type number.
    pub const fn ggml_type(self) -> u32 {
        match self {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::Bf16 => 30,
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
    /// Width of a code in bits, over all its fields.
    pub const fn code_bits(&self) -> u32 {
        let mut width = 0;
        let mut i = 0;
        while i < self.fields.len() {
            let end = self.fields[i].place + self.fields[i].bits;
            if end > width {
                width = end;
            }
            i += 1;
        }
        width
    }

    /// Code of element `i`, sign-extended where the format says so, before the bias.
    pub fn code(&self, block: &[u8], i: usize) -> i32 {
        let mut code = 0u32;
        for f in self.fields {
            let (byte, shift) = f.locate(i);
            let mask = (1u32 << f.bits) - 1;
            code |= (u32::from(block[byte]) >> shift & mask) << f.place;
        }
        if self.signed {
            let unused = 32 - self.code_bits();
            (code << unused) as i32 >> unused
        } else {
            code as i32
        }
    }

    /// Elements that share one scale (and minimum).
    pub const fn group_len(&self) -> usize {
        match self.scales {
            ScaleRule::Block { .. } => self.block_len,
            ScaleRule::PackedK { .. } => 32,
            ScaleRule::I8Groups { group, .. } => group,
        }
    }

    /// Scale and minimum of group `g`: `value = scale * (code - bias) - min`.
    pub fn group_scale(&self, block: &[u8], g: usize) -> (f32, f32) {
        match self.scales {
            ScaleRule::Block { d } => (f16_at(block, d), 0.0),
            ScaleRule::PackedK { d, dmin, packed } => {
                let (sc, m) = packed_k(&block[packed..packed + 12], g);
                (
                    f16_at(block, d) * f32::from(sc),
                    f16_at(block, dmin) * f32::from(m),
                )
            }
            ScaleRule::I8Groups { d, scales, .. } => {
                (f16_at(block, d) * f32::from(block[scales + g] as i8), 0.0)
            }
        }
    }

    /// Value of element `i`, by the formula.
    pub fn value(&self, block: &[u8], i: usize) -> f32 {
        let (scale, min) = self.group_scale(block, i / self.group_len());
        let product = scale * (self.code(block, i) - self.bias) as f32;
        if self.has_min() {
            product - min
        } else {
            product
        }
    }

    /// Decodes one block of [`Codec::block_bytes`] into [`Codec::block_len`] values; bit-equal to
    /// [`Codec::value`].
    pub fn decode_block(&self, block: &[u8], out: &mut [f32]) {
        let mut buffer = [0u32; MAX_BLOCK_LEN];
        let codes = &mut buffer[..self.block_len];
        for f in self.fields {
            f.gather(block, codes);
        }
        // Sign extension and bias as integers, so that one path serves every format.
        let unused = if self.signed {
            32 - self.code_bits()
        } else {
            0
        };
        let group = self.group_len();
        let groups = codes.chunks_exact(group).zip(out.chunks_exact_mut(group));
        for (g, (codes, out)) in groups.enumerate() {
            let (scale, min) = self.group_scale(block, g);
            for (o, &c) in out.iter_mut().zip(codes.iter()) {
                *o = scale * (((c << unused) as i32 >> unused) - self.bias) as f32;
            }
            if self.has_min() {
                out.iter_mut().for_each(|o| *o -= min);
            }
        }
    }

    const fn has_min(&self) -> bool {
        matches!(self.scales, ScaleRule::PackedK { .. })
    }
}

impl BitField {
    /// Adds this field's bits of every element to `codes`.
    fn gather(&self, block: &[u8], codes: &mut [u32]) {
        let per_byte = 8 / self.bits;
        let mask = ((1u32 << self.bits) - 1) as u8;
        let chunks = codes.chunks_mut(self.lanes * per_byte as usize);
        for (bytes, codes) in block[self.offset..].chunks(self.lanes).zip(chunks) {
            for (k, codes) in codes.chunks_mut(self.lanes).enumerate() {
                let shift = self.bits * k as u32;
                for (c, &b) in codes.iter_mut().zip(bytes) {
                    *c |= u32::from(b >> shift & mask) << self.place;
                }
            }
        }
    }
}

/// The f16 at byte `at` of a block.
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 6-bit scale and minimum `g` (0..8) of the K-quants' 12 packed bytes (`get_scale_min_k4` in ggml).
pub fn packed_k(packed: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        (
            (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4,
            (packed[g + 4] >> 4) | (packed[g] >> 6) << 4,
        )
    }
}
