//! Products with [rows in twelve bits](super::short_rows): decoded in registers, then as plain rows of floats, in the same
//! order, so that results are the same to the bit.

use super::float::{Extent, Tiles, blocks};
use super::prefetch::{Ahead, Ask, LINE, ask_for};
use super::quantize::InputRows;
use super::short_rows::{CHUNK, CHUNK_BYTES, Exception, HALF, ShortRows};
use super::simd::small_floats::SmallFloats;
use super::simd::{LANES, per_isa};

/// Rows of a matrix to multiply.
#[derive(Clone, Copy)]
pub(super) struct Short<'a> {
    pub(super) matrix: &'a ShortRows,
    /// Where the weights' memory begins.
    pub(super) memory: *const u8,
    /// The first row.
    pub(super) row: usize,
    pub(super) ask: Ask,
}

per_isa! {
    /// `out[r * stride + c] = x[first + r] . w[c]`.
    ///
    /// # Safety
    /// `w` holds the extent's columns, `x` the rows, `out` the results.
    pub(super) fn multiply(w: Short<'_>, x: InputRows, extent: Extent, ahead: &mut Ahead) = multiply_with
}

#[inline(always)]
unsafe fn multiply_with<V: SmallFloats>(
    w: Short<'_>,
    x: InputRows,
    extent: Extent,
    ahead: &mut Ahead,
) {
    // SAFETY: the caller's duty.
    unsafe { blocks::<V, Short<'_>>(w, x, extent, ahead) }
}

/// The exceptions of a row that are still to come.
#[derive(Clone, Copy)]
struct Coming<'a> {
    exceptions: &'a [Exception],
    /// Position of the first.
    next: usize,
}

impl<'a> Coming<'a> {
    fn new(exceptions: &'a [Exception]) -> Self {
        let next = exceptions.first().map_or(usize::MAX, |e| e.at as usize);
        Self { exceptions, next }
    }

    /// Puts those of the half from `begin` on into its values.
    #[cold]
    #[inline(never)]
    fn put(&mut self, begin: usize, values: &mut [f32; HALF]) {
        while let Some((e, rest)) = self.exceptions.split_first()
            && (e.at as usize) < begin + HALF
        {
            values[e.at as usize - begin] = f32::from_bits(u32::from(e.bits) << 16);
            *self = Coming::new(rest);
        }
    }
}

/// The values of a half, decoded.
#[inline(always)]
unsafe fn decode<V: SmallFloats>(
    firsts: V::B,
    codes: V::B,
    seconds: *const u8,
    begin: usize,
    coming: &mut Coming<'_>,
) -> [V::F; HALF / LANES] {
    // SAFETY: the caller's duty.
    unsafe {
        let mut floats = V::brain_floats(V::load_bytes(seconds), V::lookup(firsts, codes));
        if coming.next < begin + HALF {
            let mut values = [0.0; HALF];
            for (f, to) in floats.iter().zip(values.as_chunks_mut::<LANES>().0) {
                V::store(to.as_mut_ptr(), *f);
            }
            coming.put(begin, &mut values);
            for (f, from) in floats.iter_mut().zip(values.as_chunks::<LANES>().0) {
                *f = V::load(from.as_ptr());
            }
        }
        floats
    }
}

impl Tiles for Short<'_> {
    #[inline(always)]
    unsafe fn tile<V: SmallFloats, const M: usize, const N: usize, const FIRST: bool>(
        self,
        x: InputRows,
        e: Extent,
        (r, c): (usize, usize),
        step: usize,
        ahead: &mut Ahead,
    ) {
        let (k, distance) = (self.matrix.k, self.ask.distance(N));
        // SAFETY: the caller's duty; rows are whole chunks.
        unsafe {
            let firsts = V::table(self.matrix.firsts().as_ptr());
            let mut xs = [std::ptr::null::<f32>(); M];
            for m in 0..M {
                xs[m] = x.float_row(x.taken(e.first + r + m)).cast_const();
            }
            let mut coming = [Coming::new(&[]); N];
            for n in 0..N {
                coming[n] = Coming::new(self.matrix.exceptions(self.row + c + n * step));
            }
            let ws: [*const u8; N] =
                std::array::from_fn(|n| self.matrix.row(self.memory, self.row + c + n * step));
            let mut sums = [[V::splat(0.0); N]; M];
            for chunk in 0..k / CHUNK {
                if FIRST && chunk.is_multiple_of(2) {
                    ahead.step();
                }
                for n in 0..N {
                    let w = ws[n].add(chunk * CHUNK_BYTES);
                    if let Some(distance) = distance
                        && FIRST
                    {
                        let next = w.wrapping_offset(distance).addr();
                        for line in 0..CHUNK_BYTES / LINE {
                            ask_for(next + line * LINE);
                        }
                    }
                    let codes = V::load_bytes(w);
                    for half in 0..2 {
                        let codes = match half {
                            0 => V::bits(codes, 0, 0, 4),
                            _ => V::bits(codes, 4, 0, 4),
                        };
                        let begin = chunk * CHUNK + half * HALF;
                        let at = w.add(HALF * (1 + half));
                        let floats = decode::<V>(firsts, codes, at, begin, &mut coming[n]);
                        for m in 0..M {
                            for (i, b) in floats.iter().enumerate() {
                                let a = V::load(xs[m].add(begin + i * LANES));
                                sums[m][n] = V::fma(a, *b, sums[m][n]);
                            }
                        }
                    }
                }
            }
            for m in 0..M {
                for n in 0..N {
                    *e.out.add((r + m) * e.stride + c + n * step) = V::sum(sums[m][n]);
                }
            }
        }
    }
}
