//! The description of a block format.

/// A block format as data; see the [module](crate::formats) for how it decodes.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Codec {
    /// Lower-case name: `q4_0`.
    pub name: &'static str,
    /// GGUF's tensor type number.
    pub ggml_type: u32,
    /// Elements per block.
    pub block_len: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// Where the bits of a code lie; their places add up to the code.
    pub fields: &'static [BitField],
    /// Whether the code is two's complement in its total width.
    pub signed: bool,
    /// Subtracted from the code.
    pub bias: i32,
    /// How scales (and minima) apply.
    pub scales: ScaleRule,
}

/// A run of equally wide bit groups inside a block.
///
/// The elements are laid out in chunks of `lanes * 8 / bits` elements over `lanes` bytes; inside a chunk,
/// element `r` sits in byte `r % lanes` at bit `bits * (r / lanes)`:
///
/// ```text
/// per = lanes * 8 / bits; byte(i) = offset + i / per * lanes + i % per % lanes; shift(i) = bits * (i % per / lanes)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BitField {
    /// First byte inside the block.
    pub offset: usize,
    /// Width of one group: 1, 2, 4 or 8.
    pub bits: u32,
    /// Bytes of one chunk.
    pub lanes: usize,
    /// Left shift of the group inside the code.
    pub place: u32,
}

impl BitField {
    /// Byte (inside the block) and bit shift of element `i`.
    pub const fn locate(&self, i: usize) -> (usize, u32) {
        let per = self.lanes * 8 / self.bits as usize;
        let r = i % per;
        (
            self.offset + i / per * self.lanes + r % self.lanes,
            self.bits * (r / self.lanes) as u32,
        )
    }
}

/// How a block's scales apply to its codes. Offsets are bytes inside the block; `d`/`dmin` are f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// One f16 scale for the block (Q4_0, Q8_0).
    Block {
        /// Offset of the scale.
        d: usize,
    },
    /// K-quants with 6-bit scales and minima packed in 12 bytes, one pair per 32 elements (Q4_K, Q5_K):
    /// `d * sc * code - dmin * m`.
    PackedK {
        /// Offset of the f16 super-scale.
        d: usize,
        /// Offset of the f16 super-minimum.
        dmin: usize,
        /// Offset of the 12 packed bytes.
        packed: usize,
    },
    /// One signed byte per `group` elements times an f16 super-scale (Q6_K).
    I8Groups {
        /// Offset of the f16 super-scale.
        d: usize,
        /// Offset of the first scale byte.
        scales: usize,
        /// Elements per scale.
        group: usize,
    },
}
