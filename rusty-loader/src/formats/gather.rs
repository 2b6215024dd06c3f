//! Codes of blocks: one at a time by the formula, or a whole block at once.

use super::codec::{BitField, Codec, Grid, Part, TritRun};

/// The number that the groups of element `i` make together.
pub(super) fn read(fields: &[BitField], block: &[u8], i: usize) -> u32 {
    fields.iter().fold(0, |sum, f| sum | f.read(block, i))
}

impl Codec {
    /// Width of a code in bits, over all its parts: at most 8.
    pub const fn code_bits(&self) -> u32 {
        let mut width = 0;
        let mut i = 0;
        while i < self.codes.len() {
            let end = match self.codes[i] {
                Part::Bits(f) => f.place + f.bits,
                Part::Grid(Grid { bits, .. }) => bits,
                Part::EvenSigns { place, .. } => place + 1,
                Part::Trits(_) => 2,
            };
            if end > width {
                width = end;
            }
            i += 1;
        }
        width
    }

    /// Code of element `i`.
    pub fn code(&self, block: &[u8], i: usize) -> u8 {
        self.codes.iter().fold(0, |code, p| code | p.code(block, i))
    }

    /// The codes of a block: `out` holds [`Codec::block_len`] zeros.
    pub fn codes(&self, block: &[u8], out: &mut [u8]) {
        for part in self.codes {
            part.gather(block, out);
        }
    }
}

impl Part {
    /// This part of element `i`'s code.
    fn code(&self, block: &[u8], i: usize) -> u8 {
        match self {
            Part::Bits(f) => f.read(block, i) as u8,
            Part::Grid(grid) => grid.coordinate(grid.point(block, i), i),
            Part::EvenSigns { field, place } => {
                (even_signs(field.read(block, i)) >> (i % 8) & 1) << place
            }
            Part::Trits(runs) => runs
                .iter()
                .rev()
                .find(|run| run.first <= i)
                .map_or(0, |run| run.digit(block, i - run.first)),
        }
    }

    /// Adds this part of every element's code to `codes`.
    fn gather(&self, block: &[u8], codes: &mut [u8]) {
        match self {
            Part::Bits(f) if f.is_bytewise() => f.gather(block, codes),
            Part::Bits(f) => {
                for (j, codes) in codes.chunks_mut(f.span).enumerate() {
                    let bits = f.read(block, j * f.span) as u8;
                    codes.iter_mut().for_each(|c| *c |= bits);
                }
            }
            Part::Grid(grid) => {
                let width = grid.width();
                for (j, codes) in codes.chunks_mut(width).enumerate() {
                    let point = grid.point(block, j * width);
                    for (i, c) in codes.iter_mut().enumerate() {
                        *c |= grid.coordinate(point, i);
                    }
                }
            }
            Part::EvenSigns { field, place } => {
                for (j, codes) in codes.chunks_mut(8).enumerate() {
                    let signs = even_signs(field.read(block, j * 8));
                    for (i, c) in codes.iter_mut().enumerate() {
                        *c |= (signs >> i & 1) << place;
                    }
                }
            }
            Part::Trits(_) => {
                for (i, c) in codes.iter_mut().enumerate() {
                    *c |= self.code(block, i);
                }
            }
        }
    }
}

impl Part {
    /// Overwrites this part of every element's code; grids and even signs have no inverse and are left alone.
    pub(super) fn scatter(&self, block: &mut [u8], codes: &[u8]) {
        match self {
            Part::Bits(f) if f.is_bytewise() => f.scatter(block, codes),
            Part::Bits(f) => {
                for (i, code) in codes.iter().enumerate() {
                    f.write(block, i, u32::from(*code));
                }
            }
            Part::Trits(runs) => {
                for (r, run) in runs.iter().enumerate() {
                    let end = runs.get(r + 1).map_or(codes.len(), |next| next.first);
                    run.scatter(block, &codes[run.first..end]);
                }
            }
            Part::Grid(_) | Part::EvenSigns { .. } => {}
        }
    }
}

impl Grid {
    /// Coordinates of a point.
    pub const fn width(&self) -> usize {
        self.index[0].span
    }

    /// The point that serves element `i`.
    fn point(&self, block: &[u8], i: usize) -> u16 {
        self.points[read(self.index, block, i) as usize % self.points.len()]
    }

    fn coordinate(&self, point: u16, i: usize) -> u8 {
        (point >> (self.bits as usize * (i % self.width())) & ((1 << self.bits) - 1)) as u8
    }
}

impl TritRun {
    /// The digits of some elements, the first in the leading place; missing ones are zero.
    fn scatter(&self, block: &mut [u8], codes: &[u8]) {
        for (lane, byte) in block[self.offset..][..self.lanes].iter_mut().enumerate() {
            let digit = |n: usize| u16::from(codes.get(n * self.lanes + lane).map_or(0, |c| *c));
            let number = (0..5).fold(0, |number, n| number * 3 + digit(n));
            *byte = (number * 256).div_ceil(243) as u8;
        }
    }

    fn digit(&self, block: &[u8], r: usize) -> u8 {
        const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
        let byte = block[self.offset + r % self.lanes].wrapping_mul(POWERS[r / self.lanes % 5]);
        ((u16::from(byte) * 3) >> 8) as u8
    }
}

/// Eight signs from seven: their parity is even.
fn even_signs(seven: u32) -> u8 {
    (seven | (seven.count_ones() & 1) << 7) as u8
}

impl BitField {
    /// The group of element `i`, in its place.
    pub fn read(&self, block: &[u8], i: usize) -> u32 {
        let bit = self.locate(i);
        let byte = |at: usize| {
            block
                .get(bit / 8 + at)
                .map_or(0, |b| u32::from(*b) << (8 * at))
        };
        let window = byte(0) | byte(1) | byte(2);
        (window >> (bit % 8) & ((1 << self.bits) - 1)) << self.place
    }

    /// Overwrites the group of element `i` with its bits of `number`.
    pub fn write(&self, block: &mut [u8], i: usize, number: u32) {
        let first = self.locate(i);
        for k in 0..self.bits {
            let (at, bit) = ((first + k as usize) / 8, (first + k as usize) % 8);
            let set = (number >> (self.place + k) & 1) as u8;
            block[at] = block[at] & !(1 << bit) | set << bit;
        }
    }

    /// Whether [`BitField::lanes`] describes it.
    const fn is_bytewise(&self) -> bool {
        self.span == 1
            && self.bits.is_power_of_two()
            && self.bits <= 8
            && self.first.is_multiple_of(8)
            && self.chunk == self.lanes * 8
            && self.per * self.bits as usize == self.chunk
    }

    /// Overwrites the groups of all elements.
    fn scatter(&self, block: &mut [u8], codes: &[u8]) {
        let mask = (0xffu32 >> (8 - self.bits)) as u8;
        let chunks = codes.chunks(self.per);
        for (bytes, codes) in block[self.first / 8..].chunks_mut(self.lanes).zip(chunks) {
            bytes.fill(0);
            for (k, codes) in codes.chunks(self.lanes).enumerate() {
                let shift = self.bits * k as u32;
                for (c, b) in codes.iter().zip(bytes.iter_mut()) {
                    *b |= (c >> self.place & mask) << shift;
                }
            }
        }
    }

    /// Adds the groups of all elements to `codes`, byte loop by byte loop.
    fn gather(&self, block: &[u8], codes: &mut [u8]) {
        match self.lanes {
            1 => self.gather_lanes::<1>(block, codes),
            8 => self.gather_lanes::<8>(block, codes),
            16 => self.gather_lanes::<16>(block, codes),
            32 => self.gather_lanes::<32>(block, codes),
            64 => self.gather_lanes::<64>(block, codes),
            _ => {
                for (i, code) in codes.iter_mut().enumerate() {
                    *code |= self.read(block, i) as u8;
                }
            }
        }
    }

    /// The same for a number of lanes that the compiler knows, so that it makes vectors of them.
    fn gather_lanes<const LANES: usize>(&self, block: &[u8], codes: &mut [u8]) {
        let mask = (0xffu32 >> (8 - self.bits)) as u8;
        let bytes = block[self.first / 8..].as_chunks::<LANES>().0;
        for (bytes, codes) in bytes.iter().zip(codes.chunks_mut(self.per)) {
            for (k, codes) in codes.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                let shift = self.bits * k as u32;
                for (c, b) in codes.iter_mut().zip(bytes) {
                    *c |= (b >> shift & mask) << self.place;
                }
            }
        }
    }
}
