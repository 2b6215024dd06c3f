//! Block-quantized matrices, repacked into panels of sixteen output columns.
//!
//! A vector instruction that multiplies four byte pairs per lane wants the same four inputs of sixteen
//! outputs side by side. A panel holds sixteen rows of `W` in that order: for each group of 32 inputs, eight
//! *quads* (four consecutive inputs) of 16 x 4 codes each, then the scales of the sixteen rows:
//!
//! ```text
//! bits 4   group = 4 x 64 bytes; vector j: low nibbles quad 2j, high nibbles quad 2j + 1
//! bits 6   the same for the low four bits, then 2 x 64 bytes; vector h: bits 2t.. quad 4h + t
//! bits 8   group = 8 x 64 bytes; vector q: quad q; codes are stored plus 128 where they are signed
//! ```
//!
//! Codes are unsigned; zero points enter as the integer accumulator's start. Packing reads the format's
//! [`Codec`] only, so a new format with one of these widths and scale rules needs no code here. Limits:
//! groups of 32 (or 16 with byte scales) and blocks that are a multiple of 32.

use super::simd::LANES;
use half::f16;
use rusty_loader::Codec;
use rusty_loader::formats::ScaleRule;

/// Inputs per group: what one activation scale covers.
pub(super) const GROUP: usize = 32;

/// Which kernel multiplies a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// 4-bit codes around 8, an f16 scale per group (Q4_0).
    Block4,
    /// Signed bytes, an f16 scale per group (Q8_0).
    Block8,
    /// 4-bit codes, byte scale and byte minimum per group, f16 pair per block (Q4_K).
    Min4,
    /// 6-bit codes around 32, a signed byte scale per 16, f16 per block (Q6_K).
    Half6,
}

impl Kind {
    /// All kinds, in the order of the activations' start rows.
    pub(super) const ALL: [Kind; 4] = [Kind::Block4, Kind::Block8, Kind::Min4, Kind::Half6];

    /// The kind for a format, or `None` where no kernel fits it.
    pub(super) fn of(codec: &Codec) -> Option<Self> {
        let bits: u32 = codec.fields.iter().map(|f| f.bits).sum();
        match (bits, codec.scales, codec.bias, codec.signed) {
            (4, ScaleRule::Block { .. }, 8, false) if codec.block_len == GROUP => {
                Some(Kind::Block4)
            }
            (8, ScaleRule::Block { .. }, 0, true) if codec.block_len == GROUP => Some(Kind::Block8),
            (4, ScaleRule::PackedK { .. }, 0, false) => Some(Kind::Min4),
            (6, ScaleRule::I8Groups { group: 16, .. }, 32, false) => Some(Kind::Half6),
            _ => None,
        }
    }

    /// The position in [`Kind::ALL`].
    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// Bytes of codes per group and panel.
    pub(super) const fn code_bytes(self) -> usize {
        match self {
            Kind::Block4 | Kind::Min4 => 256,
            Kind::Half6 => 384,
            Kind::Block8 => 512,
        }
    }
}

/// How a matrix `[n, k]` of a format lies in panels.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelLayout {
    pub(super) codec: &'static Codec,
    pub(super) kind: Kind,
    pub(super) k: usize,
    pub(super) n: usize,
}

/// Scales per group in bytes, by panel.
const GROUP_SCALES: usize = 2 * LANES;

impl PanelLayout {
    /// Groups per row.
    pub(super) fn groups(&self) -> usize {
        self.k / GROUP
    }

    /// Offset of the first per-group scale.
    pub(super) fn scales_at(&self) -> usize {
        self.groups() * self.kind.code_bytes()
    }

    /// Offset of the first per-block scale.
    pub(super) fn supers_at(&self) -> usize {
        self.scales_at() + self.groups() * GROUP_SCALES
    }

    /// Bytes of one panel.
    pub(super) fn panel_bytes(&self) -> usize {
        let blocks = self.k / self.codec.block_len;
        let supers = match self.kind {
            Kind::Block4 | Kind::Block8 => 0,
            Kind::Min4 => blocks * 4 * LANES,
            Kind::Half6 => blocks * 2 * LANES,
        };
        (self.supers_at() + supers).next_multiple_of(64)
    }

    /// Number of panels.
    pub(super) fn panels(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Bytes of all panels.
    pub(super) fn bytes(&self) -> usize {
        self.panels() * self.panel_bytes()
    }

    /// Packs panel `panel` of the stored matrix into `out`, which holds [`PanelLayout::panel_bytes`] and is
    /// written whole. Rows past `n` have zero scales.
    pub(super) fn pack(&self, stored: &[u8], panel: usize, out: &mut [u8]) {
        let c = self.codec;
        let row_bytes = self.k / c.block_len * c.block_bytes;
        let rows = (self.n - panel * LANES).min(LANES);
        let stored = &stored[panel * LANES * row_bytes..][..rows * row_bytes];
        if rows < LANES {
            out.fill(0);
        }
        let mut codes = [[0u8; MAX_BLOCK]; LANES];
        for block in 0..self.k / c.block_len {
            for (r, row) in stored.chunks_exact(row_bytes).enumerate() {
                let bytes = &row[block * c.block_bytes..][..c.block_bytes];
                unsigned_codes(c, bytes, &mut codes[r][..c.block_len]);
                self.pack_scales(bytes, block, r, out);
            }
            for part in 0..c.block_len / GROUP {
                let group = block * (c.block_len / GROUP) + part;
                let bytes = self.kind.code_bytes();
                let out = &mut out[group * bytes..][..bytes];
                self.pack_codes(&codes, part * GROUP, out);
            }
        }
    }

    /// The values of row `row`, read back from all panels: what the format's own decoder gives.
    pub(super) fn unpack_row(&self, panels: &[u8], row: usize, out: &mut [f32]) {
        let panel = &panels[row / LANES * self.panel_bytes()..][..self.panel_bytes()];
        let row = row % LANES;
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let bytes = self.kind.code_bytes();
            let codes = &panel[group * bytes..][..bytes];
            for (i, out) in out.iter_mut().enumerate() {
                let (scale, min) = self.scale_of(panel, group, i, row);
                let product = scale * f32::from(self.code_of(codes, i, row));
                *out = if self.kind == Kind::Min4 {
                    product - min
                } else {
                    product
                };
            }
        }
    }

    /// Code `i` of a group, less its zero point.
    fn code_of(&self, codes: &[u8], i: usize, row: usize) -> i16 {
        let (quad, byte) = (i / 4, row * 4 + i % 4);
        let nibble = |at: usize| i16::from(codes[at / 2 * 64 + byte] >> (at % 2 * 4) & 15);
        match self.kind {
            Kind::Block8 => i16::from(codes[quad * 64 + byte]) - 128,
            Kind::Block4 => nibble(quad) - 8,
            Kind::Min4 => nibble(quad),
            Kind::Half6 => {
                let pairs = codes[(4 + quad / 4) * 64 + byte] >> (quad % 4 * 2) & 3;
                (nibble(quad) | i16::from(pairs) << 4) - 32
            }
        }
    }

    /// Scale and minimum of element `i` of a group.
    fn scale_of(&self, panel: &[u8], group: usize, i: usize, row: usize) -> (f32, f32) {
        let half = |at: usize| f16::from_le_bytes([panel[at], panel[at + 1]]).to_f32();
        let scales = self.scales_at() + group * GROUP_SCALES;
        let block = group / (self.codec.block_len / GROUP);
        match self.kind {
            Kind::Block4 | Kind::Block8 => (half(scales + row * 2), 0.0),
            Kind::Min4 => {
                let at = self.supers_at() + block * 4 * LANES + row * 2;
                let (scale, min) = (panel[scales + row], panel[scales + LANES + row]);
                let (d, dmin) = (half(at), half(at + 2 * LANES));
                (d * f32::from(scale), dmin * f32::from(min))
            }
            Kind::Half6 => {
                let d = half(self.supers_at() + block * 2 * LANES + row * 2);
                let scale = panel[scales + i / 16 * LANES + row] as i8;
                (d * f32::from(scale), 0.0)
            }
        }
    }

    fn pack_codes(&self, codes: &[[u8; MAX_BLOCK]; LANES], at: usize, out: &mut [u8]) {
        for (r, codes) in codes.iter().enumerate() {
            let quads = codes[at..at + GROUP].as_chunks::<4>().0;
            let quad = |q: usize| u32::from_le_bytes(quads[q]);
            let mut put = |vector: usize, v: u32| {
                out[vector * 64 + r * 4..][..4].copy_from_slice(&v.to_le_bytes());
            };
            match self.kind {
                Kind::Block8 => (0..8).for_each(|q| put(q, quad(q))),
                Kind::Block4 | Kind::Min4 => {
                    (0..4).for_each(|j| put(j, quad(2 * j) | quad(2 * j + 1) << 4));
                }
                Kind::Half6 => {
                    const LOW: u32 = 0x0f0f_0f0f;
                    (0..4).for_each(|j| {
                        put(j, (quad(2 * j) & LOW) | (quad(2 * j + 1) & LOW) << 4);
                    });
                    (0..2).for_each(|h| {
                        let pair = |t: usize| ((quad(4 * h + t) >> 4) & 0x0303_0303) << (2 * t);
                        put(4 + h, pair(0) | pair(1) | pair(2) | pair(3));
                    });
                }
            }
        }
    }

    fn pack_scales(&self, block: &[u8], index: usize, row: usize, out: &mut [u8]) {
        let half = |at: usize| [block[at], block[at + 1]];
        let scales = self.scales_at();
        let supers = self.supers_at();
        match self.codec.scales {
            ScaleRule::Block { d } => {
                out[scales + index * GROUP_SCALES + row * 2..][..2].copy_from_slice(&half(d));
            }
            ScaleRule::PackedK { d, dmin, packed } => {
                for g in 0..8 {
                    let (sc, m) = packed_k(&block[packed..packed + 12], g);
                    let at = scales + (index * 8 + g) * GROUP_SCALES + row;
                    out[at] = sc;
                    out[at + LANES] = m;
                }
                let at = supers + index * 4 * LANES + row * 2;
                out[at..at + 2].copy_from_slice(&half(d));
                out[at + 2 * LANES..][..2].copy_from_slice(&half(dmin));
            }
            ScaleRule::I8Groups { d, scales: s, .. } => {
                for g in 0..self.codec.block_len / 16 {
                    let halves = self.codec.block_len / 16;
                    out[scales + (index * halves + g) * LANES + row] = block[s + g];
                }
                out[supers + index * 2 * LANES + row * 2..][..2].copy_from_slice(&half(d));
            }
        }
    }
}

/// Longest block of any format.
const MAX_BLOCK: usize = 256;

/// Codes of a block as unsigned bytes (plus 128 where the format's are signed bytes).
fn unsigned_codes(c: &Codec, block: &[u8], codes: &mut [u8]) {
    codes.fill(if c.signed { 0x80 } else { 0 });
    for f in c.fields {
        let per_byte = 8 / f.bits as usize;
        let mask = (0xffu32 >> (8 - f.bits)) as u8;
        let chunks = codes.chunks_mut(f.lanes * per_byte);
        for (bytes, codes) in block[f.offset..].chunks(f.lanes).zip(chunks) {
            for (i, codes) in codes.chunks_mut(f.lanes).enumerate() {
                let shift = f.bits * i as u32;
                for (code, byte) in codes.iter_mut().zip(bytes) {
                    *code ^= ((byte >> shift) & mask) << f.place;
                }
            }
        }
    }
}

/// 6-bit scale and minimum of group `g` in the 12 packed bytes of ggml's K-quants (`get_scale_min_k4`).
fn packed_k(p: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (p[g] & 63, p[g + 4] & 63)
    } else {
        (
            (p[g + 4] & 15) | (p[g - 4] >> 6) << 4,
            (p[g + 4] >> 4) | (p[g] >> 6) << 4,
        )
    }
}
