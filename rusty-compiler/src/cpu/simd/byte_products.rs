//! Sums of byte products: what integer tiles need of the instruction sets.

use super::Vector;
#[cfg(target_arch = "x86_64")]
use super::avx2::Ints;
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
}

/// Sets that widen each product at once.
macro_rules! at_once {
    ($set:ty, |$acc:ident, $codes:ident, $x:ident| $sum:expr) => {
        // SAFETY (all functions): the trait's contract.
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl ByteProducts for $set {
            type Dots = Self::I;
            const CARRY: i32 = i32::MAX;

            #[inline(always)]
            unsafe fn dots(start: Self::I) -> Self::I {
                start
            }
            #[inline(always)]
            unsafe fn dot($acc: Self::I, $codes: Self::B, $x: i32) -> Self::I {
                $sum
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
        }
    };
}
#[cfg(target_arch = "x86_64")]
at_once!(super::avx512::Avx512, |acc, codes, x| unsafe {
    _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x))
});
#[cfg(target_arch = "aarch64")]
at_once!(super::neon::Neon, |acc, codes, x| {
    let x = unsafe { vreinterpretq_s8_s32(vdupq_n_s32(x)) };
    super::neon::zip(acc, codes, |acc, codes| unsafe {
        super::neon::dot4(acc, vreinterpretq_s8_u8(codes), x)
    })
});
at_once!(super::scalar::Scalar, |acc, codes, x| {
    std::array::from_fn(|i| acc[i] + super::scalar::dot4(&codes, i, x, 0))
});

/// Words of pairs, and what was carried of them.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Words {
    carried: Ints,
    words: Ints,
}

#[cfg(target_arch = "x86_64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl ByteProducts for super::avx2::Avx2 {
    type Dots = Words;
    const CARRY: i32 = i16::MAX as i32;

    #[inline(always)]
    unsafe fn dots(start: Ints) -> Words {
        let words = unsafe { Self::splat_i(0) };
        Words {
            carried: start,
            words,
        }
    }
    #[inline(always)]
    unsafe fn dot(dots: Words, codes: Ints, x: i32) -> Words {
        unsafe {
            let x = _mm256_set1_epi32(x);
            let Ints(a, b) = dots.words;
            Words {
                words: Ints(
                    _mm256_add_epi16(a, _mm256_maddubs_epi16(codes.0, x)),
                    _mm256_add_epi16(b, _mm256_maddubs_epi16(codes.1, x)),
                ),
                ..dots
            }
        }
    }
    #[inline(always)]
    unsafe fn carry(dots: Words) -> Words {
        unsafe {
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
        unsafe { dots.words = settled(dots.words) }
    }
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
