//! Rows of BF16, shortened or not, read chunk by chunk as words: of each 32 values, `i` and `16 + i` lie beside each other, as
//! [decoding](super::short_tile::decode) leaves them.

use super::brain_tile::Plain;
use super::prefetch::{Ask, ask_for};
use super::short_rows::{HALF, row_bytes};
use super::short_tile::{CHUNK_WORDS, Coming, Short, decode};
use super::simd::small_floats::SmallFloats;

/// A matrix whose rows, which are a product's columns, are read chunk by chunk.
pub(super) trait Columns: Copy {
    /// What is known of a row on the way through it.
    type Row: Copy;
    /// Values of a row, whole chunks.
    fn k(self) -> usize;
    /// What is asked for while it is read.
    fn ask(self) -> Ask;
    fn row(self, c: usize) -> Self::Row;
    /// Bytes from one row to the next.
    fn row_bytes(self) -> usize;
    /// What decoding looks values up in.
    ///
    /// # Safety
    /// The machine has `V`'s instruction set.
    unsafe fn table<V: SmallFloats>(self) -> V::B;
    /// The words of a row's chunk from value `begin` on; what lies `distance` bytes further is asked for.
    ///
    /// # Safety
    /// As for the table, which this is; the row holds the chunk.
    unsafe fn chunk<V: SmallFloats>(
        self,
        row: &mut Self::Row,
        table: V::B,
        begin: usize,
        distance: Option<isize>,
    ) -> [V::B; CHUNK_WORDS];
}

impl<'a> Columns for Short<'a> {
    type Row = (Coming<'a>, *const u8);

    fn k(self) -> usize {
        self.matrix.k
    }

    fn ask(self) -> Ask {
        self.ask
    }

    fn row(self, c: usize) -> Self::Row {
        Short::row(&self, c)
    }

    fn row_bytes(self) -> usize {
        row_bytes(self.matrix.k)
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

    fn ask(self) -> Ask {
        self.ask
    }

    fn row(self, c: usize) -> *const u8 {
        self.at.wrapping_add(c * self.row_bytes())
    }

    fn row_bytes(self) -> usize {
        self.k * 2
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
        table: V::B,
        begin: usize,
        distance: Option<isize>,
    ) -> [V::B; CHUNK_WORDS] {
        let mut words = [table; CHUNK_WORDS];
        // SAFETY: the caller's duty; a vector of words is a line.
        unsafe {
            for i in 0..CHUNK_WORDS {
                let at = row.add(begin * 2 + i * HALF);
                if let Some(distance) = distance {
                    ask_for(at.wrapping_offset(distance).addr());
                }
                words[i] = V::interleave(V::load_bytes(at));
            }
        }
        words
    }
}
