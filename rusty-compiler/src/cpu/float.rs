//! Float tiles: some input rows times some rows of a matrix of floats, in single precision.
//!
//! Both operands are read along `k`, sixteen lanes at a time, with one accumulator per pair and one sum over
//! lanes at the end; that order is the same for every tile shape. Weights are converted in registers: F16, BF16, and
//! blocks of small floats with a scale, whose levels no byte could hold.

use super::prefetch::{Ahead, Ask, LINE, ask_for};
use super::quantize::InputRows;
use super::row_tiles::{Extent, Sums, Tiles, blocks};
use super::simd::small_floats::SmallFloats;
use super::simd::{LANES, Level, Vector, per_isa, vectors};
use rusty_loader::formats::{Levels, NF4_G64, NORMAL_FLOATS, Unit};
use rusty_loader::{Codec, Format};
use std::marker::PhantomData;

/// Stored precision of plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatKind {
    F32,
    F16,
    Bf16,
}

/// How the rows of a float matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    Plain(FloatKind),
    /// Blocks of 32 E4M3 floats with an f32 scale.
    Float8x32,
    /// Blocks of 64.
    Float8x64,
    /// Blocks of 128.
    Float8x128,
    /// Blocks of 64 4-bit normal floats with an f32 scale.
    NormalFloat,
}

impl RowKind {
    /// The kind of a format, or the codec whose codes become bytes.
    pub(super) fn of(format: Format) -> Result<Self, &'static Codec> {
        let codec = match format {
            Format::F32 => return Ok(RowKind::Plain(FloatKind::F32)),
            Format::F16 => return Ok(RowKind::Plain(FloatKind::F16)),
            Format::Bf16 => return Ok(RowKind::Plain(FloatKind::Bf16)),
            Format::Blocks(codec) => codec,
        };
        if !matches!(codec.scale.unit, Unit::F32First) || codec.min.is_some() {
            return Err(codec);
        }
        match (codec.levels, codec.block_len) {
            (Levels::E4M3, 32) => Ok(RowKind::Float8x32),
            (Levels::E4M3, 64) => Ok(RowKind::Float8x64),
            (Levels::E4M3, 128) => Ok(RowKind::Float8x128),
            (Levels::Floats(table), 64) if *table == NORMAL_FLOATS => Ok(RowKind::NormalFloat),
            _ => Err(codec),
        }
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(self, k: usize) -> usize {
        match self {
            RowKind::Plain(FloatKind::F32) => InF32::offset(k),
            RowKind::Plain(FloatKind::F16) => InF16::offset(k),
            RowKind::Plain(FloatKind::Bf16) => InBf16::offset(k),
            RowKind::Float8x32 => InFloat8::<32>::offset(k),
            RowKind::Float8x64 => InFloat8::<64>::offset(k),
            RowKind::Float8x128 => InFloat8::<128>::offset(k),
            RowKind::NormalFloat => InNormalFloat::offset(k),
        }
    }
}

/// Rows of a row-major float matrix.
#[derive(Clone, Copy)]
pub(super) struct FloatRows {
    pub(super) kind: RowKind,
    /// First byte of the first row.
    pub(super) at: *const u8,
    pub(super) k: usize,
    pub(super) ask: Ask,
}

pub(super) trait Stored {
    const BYTES: usize;
    unsafe fn load<V: Vector>(p: *const u8) -> V::F;
}

pub(super) struct InF32;
pub(super) struct InF16;
pub(super) struct InBf16;

impl Stored for InF32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> V::F {
        // SAFETY: the caller's duty.
        unsafe { V::load(p.cast()) }
    }
}

impl Stored for InF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> V::F {
        // SAFETY: the caller's duty.
        unsafe { V::load_f16(p.cast()) }
    }
}

impl Stored for InBf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> V::F {
        // SAFETY: the caller's duty.
        unsafe { V::load_bf16(p.cast()) }
    }
}

/// How the values of a row lie.
pub(super) trait Rows {
    /// Byte of the block of value `i` (or of that value, where there are no blocks).
    fn offset(i: usize) -> usize;
    /// Sixteen values from `i` on, a multiple of sixteen.
    unsafe fn load<V: SmallFloats>(row: *const u8, i: usize) -> V::F;
}

impl<S: Stored> Rows for S {
    #[inline(always)]
    fn offset(i: usize) -> usize {
        i * S::BYTES
    }
    #[inline(always)]
    unsafe fn load<V: SmallFloats>(row: *const u8, i: usize) -> V::F {
        // SAFETY: the caller's duty.
        unsafe { <S as Stored>::load::<V>(row.add(i * S::BYTES)) }
    }
}

struct InFloat8<const LEN: usize>;
struct InNormalFloat;

impl<const LEN: usize> Rows for InFloat8<LEN> {
    #[inline(always)]
    fn offset(i: usize) -> usize {
        i / LEN * (LEN + 4)
    }
    #[inline(always)]
    unsafe fn load<V: SmallFloats>(row: *const u8, i: usize) -> V::F {
        // SAFETY: the caller's duty.
        unsafe {
            let block = row.add(Self::offset(i));
            let scale = block.cast::<f32>().read_unaligned();
            V::mul(V::splat(scale), V::load_e4m3(block.add(4 + i % LEN)))
        }
    }
}

impl Rows for InNormalFloat {
    #[inline(always)]
    fn offset(i: usize) -> usize {
        i / NF4_G64.block_len * NF4_G64.block_bytes
    }
    #[inline(always)]
    unsafe fn load<V: SmallFloats>(row: *const u8, i: usize) -> V::F {
        // Sixteen bytes hold sixteen values in their low halves and the next sixteen in their high ones.
        let (pair, high) = (i % NF4_G64.block_len / 32, i / LANES % 2);
        // SAFETY: the caller's duty.
        unsafe {
            let block = row.add(Self::offset(i));
            let scale = block.cast::<f32>().read_unaligned();
            let codes = block.add(4 + pair * LANES);
            let levels = V::lookup_nibbles(NORMAL_FLOATS.as_ptr(), codes, high == 1);
            V::mul(V::splat(scale), levels)
        }
    }
}

/// Values along `k` between two looks ahead.
pub(super) const SEGMENT: usize = 16 * LANES;

/// Steps at which [`multiply`] asks for memory ahead, in tiles of so many columns.
pub(super) fn steps(k: usize, columns: usize, tile: usize) -> usize {
    columns.div_ceil(tile) * k.div_ceil(SEGMENT)
}

/// `out[r * stride + c] = x[first + r] . w[c]`.
///
/// # Safety
/// `w` holds `columns` rows, `x` the rows, `out` the results.
pub(super) unsafe fn multiply(
    level: Level,
    w: FloatRows,
    x: InputRows,
    extent: Extent,
    ahead: &mut Ahead,
) {
    // SAFETY: the caller's duty.
    unsafe {
        match w.kind {
            RowKind::Plain(FloatKind::F32) => multiply_as::<InF32>(level, w, x, extent, ahead),
            RowKind::Plain(FloatKind::F16) => multiply_as::<InF16>(level, w, x, extent, ahead),
            RowKind::Plain(FloatKind::Bf16) => multiply_as::<InBf16>(level, w, x, extent, ahead),
            RowKind::Float8x32 => multiply_as::<InFloat8<32>>(level, w, x, extent, ahead),
            RowKind::Float8x64 => multiply_as::<InFloat8<64>>(level, w, x, extent, ahead),
            RowKind::Float8x128 => multiply_as::<InFloat8<128>>(level, w, x, extent, ahead),
            RowKind::NormalFloat => multiply_as::<InNormalFloat>(level, w, x, extent, ahead),
        }
    }
}

per_isa! {
    /// [`multiply`] for rows of one kind.
    ///
    /// # Safety
    /// As there.
    fn multiply_as<S: Rows>(w: FloatRows, x: InputRows, extent: Extent, ahead: &mut Ahead) = multiply_with
}

#[inline(always)]
unsafe fn multiply_with<V: SmallFloats, S: Rows>(
    w: FloatRows,
    x: InputRows,
    extent: Extent,
    ahead: &mut Ahead,
) {
    let w = Of::<S>(w, PhantomData);
    // SAFETY: the caller's duty.
    unsafe { blocks::<V, Of<S>>(w, x, extent, ahead) }
}

/// Rows of kind `S`.
struct Of<S>(FloatRows, PhantomData<S>);

impl<S> Clone for Of<S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Of<S> {}

impl<S: Rows> Tiles for Of<S> {
    fn ask(self) -> Ask {
        self.0.ask
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
        let w = self.0;
        let distance = w.ask.distance(N);
        // SAFETY: the caller's duty; weights past `k` are not read, inputs there are zero.
        unsafe {
            let row_bytes = S::offset(w.k);
            let ws: [*const u8; N] = std::array::from_fn(|n| w.at.add((c + n * step) * row_bytes));
            let mut sums = Sums::<V, M, N>::new(x, e, r);
            let whole = w.k / LANES * LANES;
            let mut i = 0;
            while i < whole {
                if let Some(distance) = distance
                    && FIRST
                    && S::offset(i) / LINE != S::offset(i + LANES) / LINE
                {
                    for w in ws {
                        ask_for(w.wrapping_offset(distance).addr() + S::offset(i));
                    }
                }
                if FIRST && i.is_multiple_of(SEGMENT) {
                    ahead.step();
                }
                if Sums::<V, M, N>::CROWDED {
                    for (n, w) in ws.into_iter().enumerate() {
                        sums.add_alone(n, i, S::load::<V>(w, i));
                    }
                } else {
                    sums.add_columns(i, vectors!(V, N, |n| S::load::<V>(ws[n], i)));
                }
                i += LANES;
            }
            if i < w.k {
                for (n, w) in ws.into_iter().enumerate() {
                    sums.add(n, i, last::<V, S>(w, i, row_bytes));
                }
            }
            sums.store(e, (r, c), step);
        }
    }
}

/// The values of a row from `i` on, fewer than a vector holds; behind them anything, where inputs are zero.
#[inline(always)]
unsafe fn last<V: SmallFloats, S: Rows>(row: *const u8, i: usize, row_bytes: usize) -> V::F {
    let mut bytes = [0u8; LANES * 4];
    // SAFETY: the row holds `row_bytes`.
    unsafe {
        let from = row.add(S::offset(i));
        std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), row_bytes - S::offset(i));
        S::load::<V>(bytes.as_ptr(), 0)
    }
}
