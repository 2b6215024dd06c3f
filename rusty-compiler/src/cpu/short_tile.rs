//! Products with [rows in twelve bits](super::short_rows): decoded in registers, then multiplied as plain rows of floats
//! are, in the same order, so that results are the same to the bit.
//!
//! Few input rows take each value straight from its decoding. Many take it from words in the second-level cache, which
//! some columns are decoded to before all rows pass over them.

use super::float::SEGMENT;
use super::prefetch::{Ahead, Ask, LINE, ask_for};
use super::quantize::InputRows;
use super::row_tiles::{Extent, Sums, Tiles, blocks};
use super::short_rows::{CHUNK, CHUNK_BYTES, Exception, HALF, ShortRows, row_bytes, word};
use super::simd::small_floats::SmallFloats;
use super::simd::{LANES, per_isa, vectors};

/// Input rows from which on columns are decoded to words first.
pub(super) const MANY_ROWS: usize = 6;
/// Columns that are decoded together, and the words' bytes that they should not exceed.
const COLUMNS: usize = 32;
const WORDS_BYTES: usize = 256 << 10;
/// Rows of a matrix that are decoded side by side, each a stream of its own.
const STREAMS: usize = 8;
/// Vectors that a chunk's words take.
pub(super) const CHUNK_WORDS: usize = CHUNK * 2 / HALF;

/// Rows of a matrix to multiply.
#[derive(Clone, Copy)]
pub(super) struct Short<'a> {
    pub(super) matrix: &'a ShortRows,
    /// The first row, and its first byte.
    pub(super) row: usize,
    pub(super) at: *const u8,
    /// Room for [`word_bytes`].
    pub(super) words: *mut u8,
    pub(super) ask: Ask,
}

/// Columns that are decoded together.
fn columns(k: usize) -> usize {
    (WORDS_BYTES / (2 * k)).clamp(STREAMS, COLUMNS) / STREAMS * STREAMS
}

/// Bytes that the words of some columns of `k` values take.
pub(super) fn word_bytes(k: usize) -> usize {
    columns(k) * k * 2
}

per_isa! {
    /// `out[r * stride + c] = x[first + r] . w[c]`.
    ///
    /// # Safety
    /// `w` holds the extent's columns, `x` the rows, `out` the results.
    pub(super) fn multiply(w: Short<'_>, x: InputRows, extent: Extent, ahead: &mut Ahead) = multiply_with
}

#[inline(always)]
unsafe fn multiply_with<V: SmallFloats>(w: Short<'_>, x: InputRows, e: Extent, ahead: &mut Ahead) {
    // SAFETY: the caller's duty; columns stay inside the extent.
    unsafe {
        if e.rows < MANY_ROWS {
            return blocks::<V, Short<'_>>(w, x, e, ahead);
        }
        let k = w.matrix.k;
        let mut c = 0;
        while c < e.columns {
            let some = w.decode_columns::<V>(e, c);
            blocks::<V, Words>(Words { at: w.words, k }, x, some, ahead);
            c += some.columns;
        }
    }
}

/// The exceptions of a row that are still to come.
#[derive(Clone, Copy)]
pub(super) struct Coming<'a> {
    exceptions: &'a [Exception],
    /// Position of the first.
    next: usize,
}

impl<'a> Coming<'a> {
    pub(super) fn new(exceptions: &'a [Exception]) -> Self {
        let next = exceptions.first().map_or(usize::MAX, |e| e.at as usize);
        Self { exceptions, next }
    }

    /// Puts those of the chunk from `begin` on into its words.
    #[cold]
    #[inline(never)]
    fn put(&mut self, begin: usize, words: &mut [u16; CHUNK]) {
        while let Some((e, rest)) = self.exceptions.split_first()
            && (e.at as usize) < begin + CHUNK
        {
            words[word(e.at as usize - begin)] = e.bits;
            *self = Coming::new(rest);
        }
    }
}

impl<'a> Short<'a> {
    /// Decodes some columns of an extent, from `c` on, to the words; those columns.
    ///
    /// # Safety
    /// The matrix holds the extent's columns.
    #[inline(always)]
    pub(super) unsafe fn decode_columns<V: SmallFloats>(&self, e: Extent, c: usize) -> Extent {
        let some = Extent {
            columns: columns(self.matrix.k).min(e.columns - c),
            out: e.out.wrapping_add(c),
            ..e
        };
        let step = some.columns / STREAMS;
        // SAFETY: the caller's duty.
        unsafe {
            for i in 0..step {
                self.decode_rows::<V, STREAMS>((c, c + i, step));
            }
            for i in STREAMS * step..some.columns {
                self.decode_rows::<V, 1>((c, c + i, 1));
            }
        }
        some
    }

    /// Row `c`: what is still to come of its exceptions, and its bytes.
    #[inline(always)]
    pub(super) fn row(&self, c: usize) -> (Coming<'a>, *const u8) {
        let at = self.at.wrapping_add(c * row_bytes(self.matrix.k));
        (Coming::new(self.matrix.exceptions(self.row + c)), at)
    }

    /// Decodes `N` rows, every `step`-th from `c` on, to the words of the columns that begin at `first`.
    #[inline(always)]
    unsafe fn decode_rows<V: SmallFloats, const N: usize>(
        &self,
        (first, c, step): (usize, usize, usize),
    ) {
        let (k, distance) = (self.matrix.k, self.ask.distance(N));
        // SAFETY: the caller's duty; the words have room for the columns.
        unsafe {
            let firsts = V::table(self.matrix.firsts().as_ptr());
            let mut rows = [(Coming::new(&[]), std::ptr::null()); N];
            for n in 0..N {
                rows[n] = self.row(c + n * step);
            }
            for begin in (0..k).step_by(CHUNK) {
                for (n, (coming, at)) in rows.iter_mut().enumerate() {
                    let words = decode::<V>(firsts, *at, begin, coming, distance);
                    let to = self.words.add(((c + n * step - first) * k + begin) * 2);
                    for (i, words) in words.into_iter().enumerate() {
                        V::store_bytes(to.add(i * HALF), words);
                    }
                }
            }
        }
    }
}

/// The words of the chunk from value `begin` on of the row at `row`; what lies `distance` further is asked for.
#[inline(always)]
pub(super) unsafe fn decode<V: SmallFloats>(
    firsts: V::B,
    row: *const u8,
    begin: usize,
    coming: &mut Coming<'_>,
    distance: Option<isize>,
) -> [V::B; CHUNK_WORDS] {
    // SAFETY: the caller's duty.
    unsafe {
        let at = row.add(begin / CHUNK * CHUNK_BYTES);
        if let Some(distance) = distance {
            let next = at.wrapping_offset(distance).addr();
            for line in 0..CHUNK_BYTES / LINE {
                ask_for(next + line * LINE);
            }
        }
        let codes = V::load_bytes(at);
        let low = V::lookup(firsts, V::bits(codes, 0, 0, 4));
        let high = V::lookup(firsts, V::bits(codes, 4, 0, 4));
        let [a, b] = V::words(V::load_bytes(at.add(HALF)), low);
        let [c, d] = V::words(V::load_bytes(at.add(2 * HALF)), high);
        let mut words = [a, b, c, d];
        if coming.next < begin + CHUNK {
            let mut values = [0u16; CHUNK];
            let at: *mut u8 = values.as_mut_ptr().cast();
            for (i, words) in words.into_iter().enumerate() {
                V::store_bytes(at.add(i * HALF), words);
            }
            coming.put(begin, &mut values);
            let at: *const u8 = values.as_ptr().cast();
            for (i, words) in words.iter_mut().enumerate() {
                *words = V::load_bytes(at.add(i * HALF));
            }
        }
        words
    }
}

impl Tiles for Short<'_> {
    fn ask(self) -> Ask {
        self.ask
    }

    #[inline(always)]
    unsafe fn tile<V: SmallFloats, const M: usize, const N: usize, const FIRST: bool>(
        self,
        x: InputRows,
        e: Extent,
        (r, c): (usize, usize),
        step: usize,
        ahead: &mut Ahead,
    ) {
        let distance = self.ask.distance(N).filter(|_| FIRST);
        // SAFETY: the caller's duty; rows are whole chunks.
        unsafe {
            let firsts = V::table(self.matrix.firsts().as_ptr());
            let mut rows = [(Coming::new(&[]), std::ptr::null()); N];
            for n in 0..N {
                rows[n] = self.row(c + n * step);
            }
            let mut sums = Sums::<V, M, N>::new(x, e, r);
            for begin in (0..self.matrix.k).step_by(CHUNK) {
                if FIRST && begin.is_multiple_of(SEGMENT) {
                    ahead.step();
                }
                for (n, (coming, at)) in rows.iter_mut().enumerate() {
                    let words = decode::<V>(firsts, *at, begin, coming, distance);
                    for (i, words) in words.into_iter().enumerate() {
                        let [a, b] = V::widen(words);
                        sums.add(n, begin + 2 * i * LANES, a);
                        sums.add(n, begin + (2 * i + 1) * LANES, b);
                    }
                }
            }
            sums.store(e, (r, c), step);
        }
    }
}

/// Rows that were decoded to words.
#[derive(Clone, Copy)]
struct Words {
    at: *const u8,
    k: usize,
}

/// The words of a column from value `begin` on.
#[inline(always)]
unsafe fn widened<V: SmallFloats>(column: *const u8, begin: usize) -> [V::F; 2] {
    // SAFETY: the caller's duty.
    unsafe { V::widen(V::load_bytes(column.add(begin * 2))) }
}

impl Tiles for Words {
    fn ask(self) -> Ask {
        Ask::Nothing
    }

    #[inline(always)]
    unsafe fn tile<V: SmallFloats, const M: usize, const N: usize, const FIRST: bool>(
        self,
        x: InputRows,
        e: Extent,
        (r, c): (usize, usize),
        step: usize,
        ahead: &mut Ahead,
    ) {
        // SAFETY: the caller's duty; rows are whole chunks.
        unsafe {
            let mut sums = Sums::<V, M, N>::new(x, e, r);
            let row = |n: usize| self.at.wrapping_add((c + n * step) * self.k * 2);
            let ws: [*const u8; N] = std::array::from_fn(row);
            for begin in (0..self.k).step_by(HALF / 2) {
                if FIRST && begin.is_multiple_of(SEGMENT) {
                    ahead.step();
                }
                if Sums::<V, M, N>::CROWDED {
                    for (n, w) in ws.into_iter().enumerate() {
                        let [even, odd] = widened::<V>(w, begin);
                        sums.add_alone(n, begin, even);
                        sums.add_alone(n, begin + LANES, odd);
                    }
                    continue;
                }
                // Words are loaded once for the even values and once for the odd ones: few vectors are held at a time.
                let even = vectors!(V, N, |n| widened::<V>(ws[n], begin)[0]);
                sums.add_columns(begin, even);
                let odd = vectors!(V, N, |n| widened::<V>(ws[n], begin)[1]);
                sums.add_columns(begin + LANES, odd);
            }
            sums.store(e, (r, c), step);
        }
    }
}
