//! Some columns of a matrix of BF16 as words in the second-level cache, before many rows pass over them.
//!
//! Of each 32 values of a column, `i` and `16 + i` lie beside each other, as [decoding](super::short_tile::decode) leaves them; plain
//! rows are put in that order.

use super::brain_tile::Plain;
use super::prefetch::{Ask, ask_for};
use super::row_tiles::Extent;
use super::short_rows::{CHUNK, HALF};
use super::short_tile::{Coming, Short, decode};
use super::simd::LANES;
use super::simd::small_floats::SmallFloats;

/// Columns that become words together, whole vectors of them, and the bytes that those should not exceed.
const COLUMNS: usize = 32;
const WORDS_BYTES: usize = 256 << 10;
/// Rows of a matrix that are read side by side, each a stream of its own.
const STREAMS: usize = 8;
/// Vectors that a chunk's words take.
pub(super) const CHUNK_WORDS: usize = CHUNK * 2 / HALF;

/// Columns that become words together.
fn columns(k: usize) -> usize {
    (WORDS_BYTES / (2 * k)).clamp(LANES, COLUMNS) / LANES * LANES
}

/// Bytes that the words of some columns of `k` values take.
pub(super) fn word_bytes(k: usize) -> usize {
    columns(k) * k * 2
}

/// Bytes that some columns take as words and, where there are tile registers, once more in the order [that those
/// want](super::amx_brains).
pub(super) fn room(k: usize) -> usize {
    2 * word_bytes(k)
}

/// A matrix whose columns become words.
pub(super) trait Columns: Copy {
    /// What is known of a row on the way through it.
    type Row: Copy;
    /// Values of a row, whole chunks.
    fn k(self) -> usize;
    /// [`room`] for some columns.
    fn words(self) -> *mut u8;
    fn row(self, c: usize) -> Self::Row;
    /// What decoding looks values up in.
    ///
    /// # Safety
    /// `V`'s instruction set.
    unsafe fn table<V: SmallFloats>(self) -> V::B;
    /// The words of a row's chunk from value `begin` on; what lies `distance` further is asked for.
    ///
    /// # Safety
    /// The row holds the chunk.
    unsafe fn chunk<V: SmallFloats>(
        self,
        row: &mut Self::Row,
        table: V::B,
        begin: usize,
        distance: Option<isize>,
    ) -> [V::B; CHUNK_WORDS];
}

/// Makes some columns of an extent, from `c` on, words; those columns.
///
/// # Safety
/// The matrix holds the extent's columns.
#[inline(always)]
pub(super) unsafe fn make_words<V: SmallFloats, W: Columns>(w: W, e: Extent, c: usize) -> Extent {
    let some = Extent {
        columns: columns(w.k()).min(e.columns - c),
        out: e.out.wrapping_add(c),
        ..e
    };
    let step = some.columns / STREAMS;
    // SAFETY: the caller's duty.
    unsafe {
        for i in 0..step {
            rows::<V, W, STREAMS>(w, (c, c + i, step));
        }
        for i in STREAMS * step..some.columns {
            rows::<V, W, 1>(w, (c, c + i, 1));
        }
    }
    some
}

/// Makes `N` rows, every `step`-th from `c` on, words of the columns that begin at `first`.
#[inline(always)]
unsafe fn rows<V: SmallFloats, W: Columns, const N: usize>(
    w: W,
    (first, c, step): (usize, usize, usize),
) {
    let distance = Ask::Along.distance(N);
    let mut rows = [w.row(c); N];
    for n in 1..N {
        rows[n] = w.row(c + n * step);
    }
    // SAFETY: the caller's duty; the words have room for the columns.
    unsafe {
        let table = w.table::<V>();
        for begin in (0..w.k()).step_by(CHUNK) {
            for n in 0..N {
                let to = w.words().add(((c + n * step - first) * w.k() + begin) * 2);
                let words = w.chunk::<V>(&mut rows[n], table, begin, distance);
                for i in 0..CHUNK_WORDS {
                    V::store_bytes(to.add(i * HALF), words[i]);
                }
            }
        }
    }
}

impl<'a> Columns for Short<'a> {
    type Row = (Coming<'a>, *const u8);

    fn k(self) -> usize {
        self.matrix.k
    }

    fn words(self) -> *mut u8 {
        self.words
    }

    fn row(self, c: usize) -> Self::Row {
        Short::row(&self, c)
    }

    #[inline(always)]
    unsafe fn table<V: SmallFloats>(self) -> V::B {
        // SAFETY: sixteen bytes.
        unsafe { V::table(self.matrix.firsts().as_ptr()) }
    }

    #[inline(always)]
    unsafe fn chunk<V: SmallFloats>(
        self,
        (coming, at): &mut Self::Row,
        firsts: V::B,
        begin: usize,
        distance: Option<isize>,
    ) -> [V::B; CHUNK_WORDS] {
        // SAFETY: the caller's duty.
        unsafe { decode::<V>(firsts, *at, begin, coming, distance) }
    }
}

impl Columns for Plain {
    type Row = *const u8;

    fn k(self) -> usize {
        self.k
    }

    fn words(self) -> *mut u8 {
        self.words
    }

    fn row(self, c: usize) -> *const u8 {
        self.at.wrapping_add(c * self.k * 2)
    }

    /// Nothing is looked up.
    #[inline(always)]
    unsafe fn table<V: SmallFloats>(self) -> V::B {
        // SAFETY: sixteen bytes.
        unsafe { V::table([0; 16].as_ptr()) }
    }

    #[inline(always)]
    unsafe fn chunk<V: SmallFloats>(
        self,
        row: &mut *const u8,
        _: V::B,
        begin: usize,
        distance: Option<isize>,
    ) -> [V::B; CHUNK_WORDS] {
        // SAFETY: the caller's duty; a vector of words is a line.
        unsafe {
            let at = row.add(begin * 2);
            let mut words = [V::load_bytes(at); CHUNK_WORDS];
            for i in 0..CHUNK_WORDS {
                let at = at.add(i * HALF);
                if let Some(distance) = distance {
                    ask_for(at.wrapping_offset(distance).addr());
                }
                words[i] = V::interleave(V::load_bytes(at));
            }
            words
        }
    }
}
