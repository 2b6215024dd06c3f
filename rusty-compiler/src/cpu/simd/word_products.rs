//! Products of 16-bit words, two in each 32-bit lane: what cached values in blocks, and minima in steps, need of the
//! instruction sets.

#[cfg(target_arch = "x86_64")]
use super::avx2::{Floats, Ints};
use super::byte_products::ByteProducts;
#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// What a [`Vector`](super::Vector) makes of words.
///
/// # Safety
/// As for [`Vector`](super::Vector).
pub(in crate::cpu) trait WordProducts: ByteProducts {
    /// 32 signed bytes at `p` as words, each beside that at `q`, two in a lane. Lanes come in the set's own
    /// order, see [`WordProducts::in_order`].
    unsafe fn word_pairs(p: *const i8, q: *const i8) -> (Self::I, Self::I);
    /// Sixteen bytes below 128 at `p` as words, each beside that at `q`, two in a lane, in order.
    unsafe fn paired_bytes(p: *const u8, q: *const u8) -> Self::I;
    /// Adds to each lane the dot product of its words with the two of `x`.
    unsafe fn dot_words(acc: Self::I, words: Self::I, x: i32) -> Self::I;
    /// Brings what was made of [`WordProducts::word_pairs`] into the order of the bytes.
    unsafe fn in_order(a: Self::F, b: Self::F) -> (Self::F, Self::F);
    /// Stores lanes in -32767..=32767 as words, rounded to the nearest, ties to even.
    unsafe fn store_i16(p: *mut i16, v: Self::F);
}

#[cfg(target_arch = "x86_64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl WordProducts for super::avx512::Avx512 {
    #[inline(always)]
    unsafe fn word_pairs(p: *const i8, q: *const i8) -> (__m512i, __m512i) {
        unsafe {
            let a = _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast()));
            let b = _mm512_cvtepi8_epi16(_mm256_loadu_si256(q.cast()));
            (_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b))
        }
    }
    #[inline(always)]
    unsafe fn paired_bytes(p: *const u8, q: *const u8) -> __m512i {
        unsafe {
            let low = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm512_cvtepu8_epi32(_mm_loadu_si128(q.cast()));
            _mm512_or_si512(low, _mm512_slli_epi32::<16>(high))
        }
    }
    #[inline(always)]
    unsafe fn dot_words(acc: __m512i, words: __m512i, x: i32) -> __m512i {
        unsafe { _mm512_dpwssd_epi32(acc, words, _mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn in_order(a: __m512, b: __m512) -> (__m512, __m512) {
        unsafe {
            // Unpacking works within 128-bit lanes: `a` holds the even quads, `b` the odd ones.
            let low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            (
                _mm512_permutex2var_ps(a, low, b),
                _mm512_permutex2var_ps(a, high, b),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_i16(p: *mut i16, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v))) }
    }
}

#[cfg(target_arch = "x86_64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> WordProducts for super::avx2::Avx2<VNNI> {
    #[inline(always)]
    unsafe fn word_pairs(p: *const i8, q: *const i8) -> (Ints, Ints) {
        unsafe {
            let one = |at: usize| {
                let a = _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(at).cast()));
                let b = _mm256_cvtepi8_epi16(_mm_loadu_si128(q.add(at).cast()));
                Ints(_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b))
            };
            (one(0), one(16))
        }
    }
    #[inline(always)]
    unsafe fn paired_bytes(p: *const u8, q: *const u8) -> Ints {
        unsafe {
            let low = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu8_epi16(_mm_loadu_si128(q.cast()));
            let even = _mm256_unpacklo_epi16(low, high);
            let odd = _mm256_unpackhi_epi16(low, high);
            Ints(
                _mm256_permute2x128_si256::<0x20>(even, odd),
                _mm256_permute2x128_si256::<0x31>(even, odd),
            )
        }
    }
    #[inline(always)]
    unsafe fn dot_words(acc: Ints, words: Ints, x: i32) -> Ints {
        unsafe {
            let x = _mm256_set1_epi32(x);
            if VNNI {
                return Ints(
                    _mm256_dpwssd_avx_epi32(acc.0, words.0, x),
                    _mm256_dpwssd_avx_epi32(acc.1, words.1, x),
                );
            }
            Ints(
                _mm256_add_epi32(acc.0, _mm256_madd_epi16(words.0, x)),
                _mm256_add_epi32(acc.1, _mm256_madd_epi16(words.1, x)),
            )
        }
    }
    #[inline(always)]
    unsafe fn in_order(a: Floats, b: Floats) -> (Floats, Floats) {
        unsafe {
            // Unpacking works within 128-bit lanes: of each half, one register has the even quads.
            let one = |v: Floats| {
                Floats(
                    _mm256_permute2f128_ps::<0x20>(v.0, v.1),
                    _mm256_permute2f128_ps::<0x31>(v.0, v.1),
                )
            };
            (one(a), one(b))
        }
    }
    #[inline(always)]
    unsafe fn store_i16(p: *mut i16, v: Floats) {
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.0), _mm256_cvtps_epi32(v.1));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            _mm256_storeu_si256(p.cast(), words);
        }
    }
}

#[cfg(target_arch = "aarch64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const DOT: bool> WordProducts for super::neon::Neon<DOT> {
    #[inline(always)]
    unsafe fn word_pairs(p: *const i8, q: *const i8) -> (Self::I, Self::I) {
        unsafe {
            let one = |at: usize| {
                let (a, b) = (vld1q_s8(p.add(at)), vld1q_s8(q.add(at)));
                let (al, ah) = (vmovl_s8(vget_low_s8(a)), vmovl_high_s8(a));
                let (bl, bh) = (vmovl_s8(vget_low_s8(b)), vmovl_high_s8(b));
                [
                    vreinterpretq_s32_s16(vzip1q_s16(al, bl)),
                    vreinterpretq_s32_s16(vzip2q_s16(al, bl)),
                    vreinterpretq_s32_s16(vzip1q_s16(ah, bh)),
                    vreinterpretq_s32_s16(vzip2q_s16(ah, bh)),
                ]
            };
            (one(0), one(16))
        }
    }
    #[inline(always)]
    unsafe fn paired_bytes(p: *const u8, q: *const u8) -> Self::I {
        unsafe {
            let (a, b) = (vld1q_u8(p), vld1q_u8(q));
            let (al, ah) = (vmovl_u8(vget_low_u8(a)), vmovl_high_u8(a));
            let (bl, bh) = (vmovl_u8(vget_low_u8(b)), vmovl_high_u8(b));
            [
                vreinterpretq_s32_u16(vzip1q_u16(al, bl)),
                vreinterpretq_s32_u16(vzip2q_u16(al, bl)),
                vreinterpretq_s32_u16(vzip1q_u16(ah, bh)),
                vreinterpretq_s32_u16(vzip2q_u16(ah, bh)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn dot_words(acc: Self::I, words: Self::I, x: i32) -> Self::I {
        let x = unsafe { vreinterpretq_s16_s32(vdupq_n_s32(x)) };
        super::neon::zip(acc, words, |acc, words| unsafe {
            let words = vreinterpretq_s16_s32(words);
            let low = vmull_s16(vget_low_s16(words), vget_low_s16(x));
            vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(words, x)))
        })
    }
    #[inline(always)]
    unsafe fn in_order(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        (a, b)
    }
    #[inline(always)]
    unsafe fn store_i16(p: *mut i16, v: Self::F) {
        unsafe {
            let i = super::neon::map(v, |v| vcvtnq_s32_f32(v));
            vst1q_s16(p, vcombine_s16(vqmovn_s32(i[0]), vqmovn_s32(i[1])));
            vst1q_s16(p.add(8), vcombine_s16(vqmovn_s32(i[2]), vqmovn_s32(i[3])));
        }
    }
}

// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl WordProducts for super::scalar::Scalar {
    #[inline(always)]
    unsafe fn word_pairs(p: *const i8, q: *const i8) -> (Self::I, Self::I) {
        let word = |p: *const i8, i: usize| i32::from(unsafe { *p.add(i) });
        let half = |at: usize| {
            std::array::from_fn(|i| (word(p, at + i) & 0xffff) | (word(q, at + i) << 16))
        };
        (half(0), half(super::LANES))
    }
    #[inline(always)]
    unsafe fn paired_bytes(p: *const u8, q: *const u8) -> Self::I {
        let word = |p: *const u8, i: usize| i32::from(unsafe { *p.add(i) });
        std::array::from_fn(|i| word(p, i) | word(q, i) << 16)
    }
    #[inline(always)]
    unsafe fn dot_words(acc: Self::I, words: Self::I, x: i32) -> Self::I {
        let words_of = |v: i32| (i32::from(v as i16), v >> 16);
        let (a, b) = words_of(x);
        std::array::from_fn(|i| {
            let (p, q) = words_of(words[i]);
            acc[i] + p * a + q * b
        })
    }
    #[inline(always)]
    unsafe fn in_order(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        (a, b)
    }
    #[inline(always)]
    unsafe fn store_i16(p: *mut i16, v: Self::F) {
        for (i, v) in v.iter().enumerate() {
            unsafe { *p.add(i) = v.round_ties_even() as i16 }
        }
    }
}
