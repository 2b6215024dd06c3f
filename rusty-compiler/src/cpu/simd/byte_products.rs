//! Sums of byte products: what integer tiles, and adapters' tables in bytes, need of the instruction sets.

use super::Vector;
#[cfg(target_arch = "x86_64")]
use super::avx2::{Avx2, Ints};
#[cfg(target_arch = "aarch64")]
use super::neon::{Neon, map, zip};
use super::scalar::dot4;
#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Dot products of bytes, of which a set may carry several in fewer bits before it widens them.
///
/// # Safety
/// As for [`Vector`].
pub(in crate::cpu) trait ByteProducts: Vector {
    /// Sixteen sums under way.
    type Dots: Copy;
    /// Rows of an integer tile whose sums of a group fit the register file.
    const QUANT_ROWS: usize;
    /// Panels that a row alone is multiplied with [side by side](crate::cpu::stream): no more than the register file
    /// has room for, and one where that was not tried.
    const ROW_PANELS: usize;
    /// What [`ByteProducts::dot_wide`] adds to every weight: it multiplies `code - 128 + WIDE_OFFSET`.
    const WIDE_OFFSET: i32;
    /// What the products that [`ByteProducts::dot`] adds to a lane's pair may come to, between two carries.
    const CARRY: i32;

    /// Sums that go out from `start`.
    unsafe fn dots(start: Self::I) -> Self::Dots;
    /// Adds to lane `i` the dot product of bytes `4 i ..` of `codes` (unsigned, below 128) with the four signed bytes of
    /// `x`, of which none is -128.
    unsafe fn dot(dots: Self::Dots, codes: Self::B, x: i32) -> Self::Dots;
    /// Widens what was added.
    unsafe fn carry(dots: Self::Dots) -> Self::Dots;
    /// What was carried.
    fn carried(dots: &mut Self::Dots) -> &mut Self::I;
    /// Has sums made before what comes next. Where registers are few, a compiler that is free to take all products of a row
    /// together keeps the codes of a whole group in memory for the rows that come next.
    unsafe fn settle(sums: &mut Self::I);
    /// The same of what was not carried yet.
    unsafe fn settle_dots(dots: &mut Self::Dots);
    /// Adds to lane `i` the dot product of bytes `4 i ..` of `codes`, any unsigned bytes less `128 - WIDE_OFFSET`, with the
    /// four signed bytes of `x`, of which none is -128.
    unsafe fn dot_wide(acc: Self::I, codes: Self::B, x: i32) -> Self::I;
    /// `acc` as [`ByteProducts::dot_signed`] with `x` wants it.
    unsafe fn dot_start(acc: Self::I, x: Self::B) -> Self::I;
    /// Adds to lane `i` the dot product of bytes `4 i ..` of `codes` and `x`, both signed; no byte of `x` is -128.
    unsafe fn dot_signed(acc: Self::I, codes: Self::B, x: Self::B) -> Self::I;
}

/// What sets have that widen each product at once.
macro_rules! at_once {
    () => {
        type Dots = Self::I;
        const CARRY: i32 = i32::MAX;

        #[inline(always)]
        unsafe fn dots(start: Self::I) -> Self::I {
            start
        }
        #[inline(always)]
        unsafe fn carry(dots: Self::I) -> Self::I {
            dots
        }
        #[inline(always)]
        fn carried(dots: &mut Self::I) -> &mut Self::I {
            dots
        }
        #[inline(always)]
        unsafe fn settle(_: &mut Self::I) {}
        #[inline(always)]
        unsafe fn settle_dots(_: &mut Self::I) {}
    };
}

#[cfg(target_arch = "x86_64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl ByteProducts for super::avx512::Avx512 {
    at_once!();
    const QUANT_ROWS: usize = 12;
    const ROW_PANELS: usize = 4;
    const WIDE_OFFSET: i32 = 128;

    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, x: i32) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: __m512i, codes: __m512i, x: i32) -> __m512i {
        unsafe { Self::dot(acc, codes, x) }
    }
    #[inline(always)]
    unsafe fn dot_start(acc: __m512i, x: __m512i) -> __m512i {
        unsafe {
            let offset = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(-128), x);
            _mm512_sub_epi32(acc, offset)
        }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        unsafe {
            let unsigned = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
            _mm512_dpbusd_epi32(acc, unsigned, x)
        }
    }
}

// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl ByteProducts for super::scalar::Scalar {
    at_once!();
    const QUANT_ROWS: usize = 1;
    const ROW_PANELS: usize = 1;
    const WIDE_OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn dot(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        std::array::from_fn(|i| acc[i] + dot4(&codes, i, x, 0))
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        std::array::from_fn(|i| acc[i] + dot4(&codes, i, x, 128))
    }
    #[inline(always)]
    unsafe fn dot_start(acc: Self::I, _: Self::B) -> Self::I {
        acc
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: Self::I, codes: Self::B, x: Self::B) -> Self::I {
        let signed = |b: u8| i32::from(b.cast_signed());
        let product = |i: usize| signed(codes[i]) * signed(x[i]);
        std::array::from_fn(|i| acc[i] + (4 * i..4 * i + 4).map(product).sum::<i32>())
    }
}

#[cfg(target_arch = "aarch64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const DOT: bool> ByteProducts for Neon<DOT> {
    at_once!();
    const QUANT_ROWS: usize = if DOT { 4 } else { 2 };
    const ROW_PANELS: usize = 1;
    const WIDE_OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn dot(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
            let codes = map(codes, |codes| vreinterpretq_s8_u8(codes));
            zip(acc, codes, |acc, codes| four_products::<DOT>(acc, codes, x))
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        unsafe { Self::dot(acc, map(codes, |c| veorq_u8(c, vdupq_n_u8(0x80))), x) }
    }
    #[inline(always)]
    unsafe fn dot_start(acc: Self::I, _: Self::B) -> Self::I {
        acc
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: Self::I, codes: Self::B, x: Self::B) -> Self::I {
        std::array::from_fn(|i| unsafe {
            let (codes, x) = (vreinterpretq_s8_u8(codes[i]), vreinterpretq_s8_u8(x[i]));
            four_products::<DOT>(acc[i], codes, x)
        })
    }
}

/// Sums of four byte products per lane. Without `sdot`, two products stay within 2^15 because no activation is -128.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn four_products<const DOT: bool>(
    mut acc: int32x4_t,
    codes: int8x16_t,
    x: int8x16_t,
) -> int32x4_t {
    // SAFETY: NEON and, with `DOT`, its dot products, by the trait's contract; registers only. The standard library's
    // function for them is not stable yet.
    unsafe {
        if DOT {
            std::arch::asm!(
                ".arch_extension dotprod",
                "sdot {acc:v}.4s, {codes:v}.16b, {x:v}.16b",
                acc = inout(vreg) acc, codes = in(vreg) codes, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
            return acc;
        }
        let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
        let high = vmull_high_s8(codes, x);
        vpadalq_s16(acc, vpaddq_s16(low, high))
    }
}

/// What was widened, and words of pairs that were not; with AVX-VNNI there are none of these.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Words {
    carried: Ints,
    words: Ints,
}

#[cfg(target_arch = "x86_64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> ByteProducts for Avx2<VNNI> {
    type Dots = Words;
    const QUANT_ROWS: usize = 4;
    const ROW_PANELS: usize = 2;
    const WIDE_OFFSET: i32 = if VNNI { 128 } else { 0 };
    const CARRY: i32 = if VNNI { i32::MAX } else { i16::MAX as i32 };

    #[inline(always)]
    unsafe fn dots(start: Ints) -> Words {
        let words = unsafe { Self::splat_i(0) };
        Words {
            carried: start,
            words,
        }
    }
    #[inline(always)]
    unsafe fn dot(mut dots: Words, codes: Ints, x: i32) -> Words {
        unsafe {
            if VNNI {
                dots.carried = Self::dot_wide(dots.carried, codes, x);
                return dots;
            }
            let x = _mm256_set1_epi32(x);
            let Ints(a, b) = dots.words;
            dots.words = Ints(
                _mm256_add_epi16(a, _mm256_maddubs_epi16(codes.0, x)),
                _mm256_add_epi16(b, _mm256_maddubs_epi16(codes.1, x)),
            );
            dots
        }
    }
    #[inline(always)]
    unsafe fn carry(dots: Words) -> Words {
        unsafe {
            if VNNI {
                return dots;
            }
            let one = _mm256_set1_epi16(1);
            let Ints(a, b) = dots.carried;
            Self::dots(Ints(
                _mm256_add_epi32(a, _mm256_madd_epi16(dots.words.0, one)),
                _mm256_add_epi32(b, _mm256_madd_epi16(dots.words.1, one)),
            ))
        }
    }
    #[inline(always)]
    fn carried(dots: &mut Words) -> &mut Ints {
        &mut dots.carried
    }
    #[inline(always)]
    unsafe fn settle(sums: &mut Ints) {
        unsafe { *sums = settled(*sums) }
    }
    #[inline(always)]
    unsafe fn settle_dots(dots: &mut Words) {
        unsafe {
            match VNNI {
                true => dots.carried = settled(dots.carried),
                false => dots.words = settled(dots.words),
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: Ints, codes: Ints, x: i32) -> Ints {
        unsafe {
            let x = _mm256_set1_epi32(x);
            match VNNI {
                true => four_unsigned(acc, codes, Ints(x, x)),
                false => four_signed(acc, flipped(codes), Ints(x, x)),
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_start(acc: Ints, x: Ints) -> Ints {
        unsafe {
            if !VNNI {
                return acc;
            }
            let (zero, offset) = (_mm256_setzero_si256(), _mm256_set1_epi8(-128));
            let Ints(a, b) = four_unsigned(Ints(zero, zero), Ints(offset, offset), x);
            Ints(_mm256_sub_epi32(acc.0, a), _mm256_sub_epi32(acc.1, b))
        }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: Ints, codes: Ints, x: Ints) -> Ints {
        unsafe {
            match VNNI {
                true => four_unsigned(acc, flipped(codes), x),
                false => four_signed(acc, codes, x),
            }
        }
    }
}

/// Bytes with their first bit the other way: unsigned ones as signed ones that are 128 less, or back.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn flipped(codes: Ints) -> Ints {
    let first = _mm256_set1_epi8(-128);
    Ints(
        _mm256_xor_si256(codes.0, first),
        _mm256_xor_si256(codes.1, first),
    )
}

/// Sums of four products per lane, of unsigned bytes with signed ones.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn four_unsigned(acc: Ints, codes: Ints, x: Ints) -> Ints {
    Ints(
        _mm256_dpbusd_avx_epi32(acc.0, codes.0, x.0),
        _mm256_dpbusd_avx_epi32(acc.1, codes.1, x.1),
    )
}

/// The same of signed bytes. The sign of the codes moves to `x`: they are at most 128 then, and pairs below 2^15.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn four_signed(acc: Ints, codes: Ints, x: Ints) -> Ints {
    let ones = _mm256_set1_epi16(1);
    let a = _mm256_maddubs_epi16(_mm256_abs_epi8(codes.0), _mm256_sign_epi8(x.0, codes.0));
    let b = _mm256_maddubs_epi16(_mm256_abs_epi8(codes.1), _mm256_sign_epi8(x.1, codes.1));
    Ints(
        _mm256_add_epi32(acc.0, _mm256_madd_epi16(a, ones)),
        _mm256_add_epi32(acc.1, _mm256_madd_epi16(b, ones)),
    )
}

/// The same registers, made before anything that comes behind.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn settled(mut v: Ints) -> Ints {
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!(
            "/* {} {} */",
            inout(ymm_reg) v.0,
            inout(ymm_reg) v.1,
            options(nomem, nostack, preserves_flags),
        );
    }
    v
}
