//! Packing a matrix's blocks into [panels](super::panel).
//!
//! Any format is packed code by code, from its description. What nearly all files hold has shorter ways: nibbles that lie
//! as the panels want them four at a time, and half-precision scales that are copied.

use super::kind::{Scaling, Width};
use super::panel::{GROUP, HALF, PanelLayout};
use super::simd::LANES;
use half::{bf16, f16};
use rusty_loader::formats::{BitField, Levels, MAX_BLOCK_LEN, Part, Scale, Unit};

/// Bytes of a vector: a quad of sixteen rows.
const VECTOR: usize = 4 * LANES;

impl PanelLayout {
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
        match self.nibbles() {
            Some((first, 16)) => self.pack_nibbles::<16>(stored, first, out),
            Some((first, _)) => self.pack_nibbles::<32>(stored, first, out),
            None => self.pack_any_codes(stored, out),
        }
        match Halves::of(self) {
            Some(halves) => {
                for (r, row) in stored.chunks_exact(row_bytes).enumerate() {
                    halves.pack(self, row, r, out);
                }
            }
            None => {
                for (r, row) in stored.chunks_exact(row_bytes).enumerate() {
                    for (index, block) in row.chunks_exact(c.block_bytes).enumerate() {
                        self.pack_scales(block, index, r, out);
                    }
                }
            }
        }
    }

    /// First byte of a block's codes and the neighbouring bytes that hold them, if they are plain nibbles.
    fn nibbles(&self) -> Option<(usize, usize)> {
        let [Part::Bits(field)] = self.codec.codes else {
            return None;
        };
        let first = field.first / 8;
        let lies = |lanes: &usize| *field == BitField::lanes(first, 4, *lanes, 0);
        [16, 32].into_iter().find(lies).map(|lanes| (first, lanes))
    }

    /// Packs codes of four bits that lie in `N` bytes at a time, low halves first: words of a block become words of
    /// a panel without being taken apart.
    fn pack_nibbles<const N: usize>(&self, stored: &[u8], first: usize, out: &mut [u8]) {
        const LOW: u32 = 0x0f0f_0f0f;
        let bytes = self.codec.block_bytes;
        let (blocks, runs) = (self.k / self.codec.block_len, self.codec.block_len / 2 / N);
        // As many vectors as words: half of them take the low halves, half the high ones.
        let half = N / 8 * VECTOR;
        for run in 0..blocks * runs {
            let at = run / runs * bytes + first + run % runs * N;
            let mut words = [[0u32; LANES]; 8];
            for (r, row) in (0..LANES).zip(stored.chunks_exact(blocks * bytes)) {
                let (run, _) = row[at..at + N].as_chunks::<4>();
                for (words, word) in words.iter_mut().zip(run) {
                    words[r] = u32::from_le_bytes(*word);
                }
            }
            let (low, high) = match N {
                16 => (self.group_at(run), self.group_at(run) + half),
                _ => (self.group_at(2 * run), self.group_at(2 * run + 1)),
            };
            let (before, behind) = out.split_at_mut(high);
            let (low, _) = before[low..][..half].as_chunks_mut::<VECTOR>();
            let (high, _) = behind[..half].as_chunks_mut::<VECTOR>();
            let (pairs, _) = words.as_chunks::<2>();
            for (([a, b], low), high) in pairs.iter().zip(low).zip(high) {
                fill(low, |r| a[r] & LOW | (b[r] & LOW) << 4);
                fill(high, |r| a[r] >> 4 & LOW | b[r] & !LOW);
            }
        }
    }

    fn pack_any_codes(&self, stored: &[u8], out: &mut [u8]) {
        let c = self.codec;
        let blocks = self.k / c.block_len;
        let mut codes = [[0u8; MAX_BLOCK_LEN]; LANES];
        for block in 0..blocks {
            let rows = stored.chunks_exact(blocks * c.block_bytes);
            for (row, codes) in rows.zip(&mut codes) {
                let codes = &mut codes[..c.block_len];
                codes.fill(0);
                c.codes(&row[block * c.block_bytes..][..c.block_bytes], codes);
                if matches!(c.levels, Levels::Signed) {
                    codes.iter_mut().for_each(|code| *code ^= 0x80);
                }
            }
            for part in 0..self.block_groups() {
                let group = block * self.block_groups() + part;
                let out = &mut out[self.group_at(group)..self.scales_at(group)];
                self.pack_codes(&codes, part * GROUP, out);
            }
        }
    }

    fn pack_codes(&self, codes: &[[u8; MAX_BLOCK_LEN]; LANES], at: usize, out: &mut [u8]) {
        for (r, codes) in codes.iter().enumerate() {
            let quads = codes[at..at + GROUP].as_chunks::<4>().0;
            let quad = |q: usize| u32::from_le_bytes(quads[q]);
            let mut put = |vector: usize, v: u32| {
                out[vector * 64 + r * 4..][..4].copy_from_slice(&v.to_le_bytes());
            };
            let low = |mask: u32, from: u32, q: usize| quad(q) >> from & mask;
            let nibbles = |put: &mut dyn FnMut(usize, u32)| {
                const MASK: u32 = 0x0f0f_0f0f;
                (0..4).for_each(|j| put(j, low(MASK, 0, 2 * j) | low(MASK, 0, 2 * j + 1) << 4));
            };
            let pairs = |put: &mut dyn FnMut(usize, u32), plane: usize, from: u32| {
                const MASK: u32 = 0x0303_0303;
                (0..2).for_each(|h| {
                    let pair = |t: usize| low(MASK, from, 4 * h + t) << (2 * t);
                    put(plane + h, pair(0) | pair(1) | pair(2) | pair(3));
                });
            };
            let bits = |put: &mut dyn FnMut(usize, u32), plane: usize, from: u32| {
                const MASK: u32 = 0x0101_0101;
                put(plane, (0..8).fold(0, |v, q| v | low(MASK, from, q) << q));
            };
            match self.kind.width {
                Width::W8 => (0..8).for_each(|q| put(q, quad(q))),
                Width::W4 => nibbles(&mut put),
                Width::W5 => {
                    nibbles(&mut put);
                    bits(&mut put, 4, 4);
                }
                Width::W6 => {
                    nibbles(&mut put);
                    pairs(&mut put, 4, 4);
                }
                Width::W2 => pairs(&mut put, 0, 0),
                Width::W3 => {
                    pairs(&mut put, 0, 0);
                    bits(&mut put, 2, 2);
                }
            }
        }
    }

    /// Scales and minima of a row of a block: those of the block itself, then those of its groups.
    fn pack_scales(&self, block: &[u8], index: usize, row: usize, out: &mut [u8]) {
        self.pack_units(block, index, row, out);
        let c = self.codec;
        let scaling = self.kind.scaling;
        // A group of the format may cover several of ours, or half of one.
        let unit = if scaling.halves() { HALF } else { GROUP };
        let per_group = GROUP / unit;
        let per_unit = scaling.group_bytes() / per_group;
        for i in 0..c.block_len / unit {
            let g = i * unit / c.group;
            let group = index * self.block_groups() + i / per_group;
            let at = self.scales_at(group) + i % per_group * per_unit;
            let scale = || c.scale.at(block, g);
            let min = || c.min.map_or(0.0, |m| m.at(block, g));
            let steps = |s: &Scale| s.steps.map_or(1, |s| s.at(block, g));
            match scaling {
                Scaling::Half | Scaling::Half16 => put_half(out, at + row * 2, scale()),
                Scaling::HalfMin => {
                    put_half(out, at + row * 2, scale());
                    put_half(out, at + 2 * LANES + row * 2, min());
                }
                Scaling::Brain => put(out, at + row * 2, bf16::from_f32(scale()).to_bits()),
                Scaling::Byte | Scaling::Byte16 => out[at + row] = steps(&c.scale) as u8,
                Scaling::ByteMin | Scaling::ByteMin16 => {
                    out[at + row] = steps(&c.scale) as u8;
                    out[at + LANES + row] = c.min.as_ref().map_or(0, steps) as u8;
                }
            }
        }
    }

    /// What a block's steps are multiplied with.
    fn pack_units(&self, block: &[u8], index: usize, row: usize, out: &mut [u8]) {
        let c = self.codec;
        let scaling = self.kind.scaling;
        let supers = self.block_at(index) + row * 2;
        match scaling {
            Scaling::Byte | Scaling::Byte16 => {
                put_half(out, supers, c.scale.unit.at(block, 0));
            }
            Scaling::ByteMin | Scaling::ByteMin16 => {
                put_half(out, supers, c.scale.unit.at(block, 0));
                let min = c.min.map_or(0.0, |m| m.unit.at(block, 0) * m.factor);
                put_half(out, supers + 2 * LANES, min);
            }
            Scaling::Half | Scaling::Half16 | Scaling::HalfMin | Scaling::Brain => {}
        }
    }
}

/// Scales (and minima) that are one half-precision number per block, of 32 elements.
struct Halves {
    scale: usize,
    min: Option<Min>,
}

#[derive(Clone, Copy)]
struct Min {
    at: usize,
    /// Flips the sign where the format adds what panels subtract.
    sign: u16,
}

impl Halves {
    fn of(layout: &PanelLayout) -> Option<Self> {
        let c = layout.codec;
        let whole = |s: &Scale| match s.unit {
            Unit::F16([field]) if s.steps.is_none() && field.bits == 16 => {
                let at = field.first.is_multiple_of(8).then_some(field.first / 8)?;
                match s.factor {
                    1.0 => Some(Min { at, sign: 0 }),
                    -1.0 => Some(Min { at, sign: 0x8000 }),
                    _ => None,
                }
            }
            _ => None,
        };
        let plain = matches!(layout.kind.scaling, Scaling::Half | Scaling::HalfMin);
        if !plain || c.block_len != GROUP || c.group != GROUP {
            return None;
        }
        let scale = whole(&c.scale).filter(|s| s.sign == 0)?.at;
        let min = match &c.min {
            None => None,
            Some(min) => Some(whole(min)?),
        };
        let same = min.is_some() == matches!(layout.kind.scaling, Scaling::HalfMin);
        same.then_some(Self { scale, min })
    }

    /// Packs those of row `r` of a panel.
    fn pack(&self, layout: &PanelLayout, row: &[u8], r: usize, out: &mut [u8]) {
        let half = |block: &[u8], at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        let blocks = row.chunks_exact(layout.codec.block_bytes);
        for (block, group) in blocks.zip(out.chunks_exact_mut(layout.group_bytes())) {
            let out = &mut group[layout.kind.width.code_bytes()..];
            put(out, r * 2, half(block, self.scale));
            if let Some(min) = self.min {
                put(out, 2 * LANES + r * 2, half(block, min.at) ^ min.sign);
            }
        }
    }
}

/// Stores a word for each row.
fn fill(vector: &mut [u8; VECTOR], word: impl Fn(usize) -> u32) {
    for (r, out) in vector.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *out = word(r).to_le_bytes();
    }
}

/// Stores a number in half precision.
fn put_half(out: &mut [u8], at: usize, value: f32) {
    put(out, at, f16::from_f32(value).to_bits());
}

/// Stores sixteen bits.
fn put(out: &mut [u8], at: usize, bits: u16) {
    out[at..at + 2].copy_from_slice(&bits.to_le_bytes());
}
