//! Rows of BF16 in twelve bits a value, without loss.
//!
//! Of a brain float's sixteen bits eight are an exponent, and the exponents of a matrix are nearly all among a few: of
//! trained weights they carry some 2.6 bits (Zhang et al. 2025, "70% Size, 100% Accuracy", arXiv 2504.11651). Here a
//! value's upper byte, its sign and all but the last bit of its exponent, becomes a code of four bits: the sign and which
//! of eight neighbours the rest is, where 0 stands for 0 (zeros) and 1 to 7 for what is above the matrix's base. The lower
//! byte stays. What is outside is an *exception*, kept apart and put back where the row is read, as in PFOR (Zukowski et
//! al. 2006). Decoding reads a quarter less memory, which is what bounds it.
//!
//! A row is chunks of 128 values, three lines each:
//!
//! ```text
//! 64 bytes    low halves: codes of the first 64 values; high halves: of the others
//! 2 x 64      lower byte of each value
//! ```
//!
//! Inside 64 values, [`place`] orders bytes such that upper and lower bytes, interleaved in registers, become sixteen
//! neighbours per vector. Limits: rows of whole chunks, and matrices with few exceptions.

use super::float::{FloatKind, RowKind};
use super::simd::{Level, Vector, per_isa};
use half::bf16;
use rayon::prelude::*;

/// Values of a chunk.
pub(super) const CHUNK: usize = 128;
/// Its bytes.
pub(super) const CHUNK_BYTES: usize = 192;
/// Values that are decoded together.
pub(super) const HALF: usize = 64;

/// Halves of exponents with a code of their own, beside 0.
const HALVES: u8 = 7;
/// The code's bit that is the sign.
const SIGN: u8 = 8;
/// Rows between two of a sample.
const SAMPLE: usize = 16;
/// Exceptions are at most one of so many values; each takes the room of five others.
const RARE: usize = 512;

/// A value whose exponent has no code.
#[derive(Clone, Copy)]
pub(super) struct Exception {
    /// Position in its row.
    pub(super) at: u32,
    pub(super) bits: u16,
}

/// A matrix `[n, k]`.
pub(super) struct ShortRows {
    pub(super) n: usize,
    pub(super) k: usize,
    /// Where its rows begin in the weights' memory.
    pub(super) offset: usize,
    /// Upper bytes by code.
    firsts: [u8; 16],
    /// Row by row, ascending.
    exceptions: Vec<Exception>,
    /// Each row's first exception, and the number of all.
    first: Vec<u32>,
}

/// Bytes of a row of `k` values.
pub(super) fn row_bytes(k: usize) -> usize {
    k / CHUNK * CHUNK_BYTES
}

/// Bytes of a matrix `[n, k]`.
pub(super) fn matrix_bytes(n: usize, k: usize) -> usize {
    n * row_bytes(k)
}

/// Whether rows of `k` values can be shortened, if their exponents are few.
pub(super) fn fits(kind: RowKind, k: usize) -> bool {
    kind == RowKind::Plain(FloatKind::Bf16) && k > 0 && k.is_multiple_of(CHUNK)
}

/// Byte of value `i` of a half: sixteen values make a vector, of which each 128 bits take four.
const fn place(i: usize) -> usize {
    let (vector, quarter, lane) = (i / 16, i / 4 % 4, i % 4);
    16 * quarter + 8 * (vector / 2) + 2 * lane + vector % 2
}

/// Where value `i` of a chunk is among its words, once bytes are interleaved in registers.
pub(super) const fn word(i: usize) -> usize {
    let at = place(i % HALF);
    i / HALF * HALF + at % 16 / 8 * (HALF / 2) + at / 16 * 8 + at % 8
}

impl ShortRows {
    /// Shortens the rows of `stored`, `[n, k]` brain floats, into `out` of [`matrix_bytes`] that begin at `offset` of
    /// the weights' memory. Nothing where too many values are exceptions; `out` then holds anything.
    pub(super) fn pack(
        level: Level,
        (n, k): (usize, usize),
        stored: &[u8],
        offset: usize,
        out: &mut [u8],
    ) -> Option<Self> {
        debug_assert!(k.is_multiple_of(CHUNK) && stored.len() == n * k * 2);
        let base = base_of(stored, k)?;
        let pack = |(row, out): (&[u8], &mut [u8])| {
            let mut found = vec![];
            // SAFETY: a row of `k` values and its room.
            unsafe { pack_row(level, row, out, base, &mut found) };
            found
        };
        let rows = stored.par_chunks_exact(k * 2);
        let found: Vec<Vec<Exception>> = rows
            .zip(out.par_chunks_exact_mut(row_bytes(k)))
            .with_min_len(8)
            .map(pack)
            .collect();
        let mut first = Vec::with_capacity(n + 1);
        let mut count = 0u32;
        for row in &found {
            first.push(count);
            count = count.checked_add(u32::try_from(row.len()).ok()?)?;
        }
        first.push(count);
        (count as usize <= n * k / RARE).then(|| Self {
            n,
            k,
            offset,
            firsts: firsts(base),
            exceptions: found.concat(),
            first,
        })
    }

    /// Bytes of the rows and of the exceptions.
    pub(super) fn bytes(&self) -> usize {
        matrix_bytes(self.n, self.k)
            + self.exceptions.len() * size_of::<Exception>()
            + self.first.len() * size_of::<u32>()
    }

    /// First byte of row `row`, where the weights' memory begins at `memory`.
    pub(super) fn row(&self, memory: *const u8, row: usize) -> *const u8 {
        memory.wrapping_add(self.offset + row * row_bytes(self.k))
    }

    /// Upper bytes by code.
    pub(super) fn firsts(&self) -> &[u8; 16] {
        &self.firsts
    }

    /// Exceptions of a row.
    pub(super) fn exceptions(&self, row: usize) -> &[Exception] {
        &self.exceptions[self.first[row] as usize..self.first[row + 1] as usize]
    }

    /// Decodes row `row` of the matrix whose bytes these are.
    pub(super) fn unpack_row(&self, bytes: &[u8], row: usize, out: &mut [f32]) {
        let row_bytes = row_bytes(self.k);
        let chunks = bytes[row * row_bytes..][..row_bytes].as_chunks::<CHUNK_BYTES>();
        for (chunk, out) in chunks.0.iter().zip(out.chunks_exact_mut(CHUNK)) {
            for (i, out) in out.iter_mut().enumerate() {
                let (half, at) = (i / HALF, place(i % HALF));
                let code = chunk[at] >> (4 * half) & 15;
                let first = self.firsts[usize::from(code)];
                *out = float_of(u16::from_be_bytes([first, chunk[HALF * (1 + half) + at]]));
            }
        }
        for e in self.exceptions(row) {
            out[e.at as usize] = float_of(e.bits);
        }
    }
}

/// Upper bytes by code, above a base.
fn firsts(base: u8) -> [u8; 16] {
    std::array::from_fn(|code| {
        let code = code as u8;
        let half = match code % SIGN {
            0 => 0,
            above => base + above,
        };
        half | (code / SIGN) << 7
    })
}

fn float_of(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}

/// The base that leaves a sample of the rows the fewest exceptions; none where there are too many.
fn base_of(stored: &[u8], k: usize) -> Option<u8> {
    let mut counts = [0usize; 128];
    let mut all = 0;
    for row in stored.chunks_exact(k * 2).step_by(SAMPLE) {
        for [_, first] in row.as_chunks::<2>().0 {
            counts[usize::from(first & 0x7f)] += 1;
        }
        all += k;
    }
    let coded = |base: u8| -> usize {
        let above = usize::from(base) + 1;
        counts[above..above + usize::from(HALVES)].iter().sum()
    };
    let base = (0..0x80 - HALVES).max_by_key(|base| coded(*base))?;
    (all - counts[0] - coded(base) <= all / RARE).then_some(base)
}

per_isa! {
    /// Shortens one row, and tells its exceptions.
    ///
    /// # Safety
    /// `stored` is a row of whole chunks, `out` its room.
    fn pack_row(stored: &[u8], out: &mut [u8], base: u8, found: &mut Vec<Exception>) = pack_row_with
}

/// `V` only says what this is compiled for.
#[inline(always)]
unsafe fn pack_row_with<V: Vector>(
    stored: &[u8],
    out: &mut [u8],
    base: u8,
    found: &mut Vec<Exception>,
) {
    let chunks = stored.as_chunks::<{ 2 * CHUNK }>().0;
    let rooms = out.as_chunks_mut::<CHUNK_BYTES>().0;
    for (c, (stored, out)) in chunks.iter().zip(rooms).enumerate() {
        let values = stored.as_chunks::<2>().0;
        let mut codes = [0u8; CHUNK];
        let mut coded = [true; CHUNK];
        for i in 0..CHUNK {
            let half = values[i][1] & 0x7f;
            let above = half.wrapping_sub(base);
            let some = above.wrapping_sub(1) < HALVES;
            coded[i] = some | (half == 0);
            codes[i] = if some { above } else { 0 } | values[i][1] >> 7 << 3;
        }
        for i in 0..HALF {
            let at = place(i);
            out[at] = codes[i] | codes[HALF + i] << 4;
            out[HALF + at] = values[i][0];
            out[2 * HALF + at] = values[HALF + i][0];
        }
        if coded.contains(&false) {
            found.extend((0..CHUNK).filter(|i| !coded[*i]).map(|i| Exception {
                at: (c * CHUNK + i) as u32,
                bits: u16::from_le_bytes(values[i]),
            }));
        }
    }
}
