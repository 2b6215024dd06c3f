//! Small floats as checkpoints store them, in registers: E4M3 bytes, and nibbles that name an entry of a table.

use super::Vector;

/// The bits of a float that a brain float has.
const UPPER: u32 = 0xffff_0000;

/// What a [`Vector`] makes of small floats.
///
/// # Safety
/// As for [`Vector`].
pub(in crate::cpu) trait SmallFloats: Vector {
    /// Sixteen E4M3 floats; what stands for no number is 480.
    unsafe fn load_e4m3(p: *const u8) -> Self::F;
    /// Entries of a table of sixteen by the low or high halves of sixteen bytes.
    unsafe fn lookup_nibbles(table: *const f32, p: *const u8, high: bool) -> Self::F;
    /// Words of sixty-four lower and upper bytes: word `8 q + i` of vector `v` is of bytes `16 q + 8 v + i`.
    unsafe fn words(lower: Self::B, upper: Self::B) -> [Self::B; 2];
    /// Thirty-two words as the upper halves of floats, the even ones and the odd ones.
    unsafe fn widen(words: Self::B) -> [Self::F; 2];
    unsafe fn store_bytes(p: *mut u8, b: Self::B);
    /// `sum[i] + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1]` of thirty-two words that are brain floats. On AVX-512 it takes BF16, which not
    /// all that runs the rest of this trait there has.
    #[inline(always)]
    unsafe fn dot_brains(sum: Self::F, a: Self::B, b: Self::B) -> Self::F {
        // SAFETY: the trait's contract.
        unsafe {
            let ([a, a1], [b, b1]) = (Self::widen(a), Self::widen(b));
            Self::fma(a1, b1, Self::fma(a, b, sum))
        }
    }
    /// Words `i` and `16 + i` of thirty-two beside each other, as [`words`](SmallFloats::words) has them.
    #[inline(always)]
    unsafe fn interleave(words: Self::B) -> Self::B {
        let (mut from, mut to) = ([0u16; 32], [0u16; 32]);
        // SAFETY: the trait's contract; sixty-four bytes.
        unsafe {
            Self::store_bytes(from.as_mut_ptr().cast(), words);
            for i in 0..16 {
                (to[2 * i], to[2 * i + 1]) = (from[i], from[16 + i]);
            }
            Self::load_bytes(to.as_ptr().cast())
        }
    }
}

/// Sixteen E4M3 floats as half-precision numbers of the same bits, which are a 256th as large.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn e4m3_halves(p: *const u8) -> std::arch::x86_64::__m256i {
    use std::arch::x86_64::*;
    // SAFETY: AVX2 and sixteen bytes, by the trait's contract.
    unsafe {
        let wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
        let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)));
        let rest = _mm256_slli_epi16::<7>(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)));
        _mm256_or_si256(sign, rest)
    }
}

/// Eight of [`SmallFloats::lookup_nibbles`], from the halves of the table.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn eight_nibbles(
    halves: (std::arch::x86_64::__m256, std::arch::x86_64::__m256),
    p: *const u8,
    high: bool,
) -> std::arch::x86_64::__m256 {
    use std::arch::x86_64::*;
    // SAFETY: AVX2 and eight bytes, by the trait's contract.
    unsafe {
        let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        let codes = if high {
            _mm256_srli_epi32::<4>(wide)
        } else {
            wide
        };
        // Three bits choose inside a half, the fourth between them.
        let a = _mm256_permutevar8x32_ps(halves.0, codes);
        let b = _mm256_permutevar8x32_ps(halves.1, codes);
        let fourth = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
        _mm256_blendv_ps(a, b, fourth)
    }
}

#[cfg(target_arch = "x86_64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl SmallFloats for super::avx512::Avx512 {
    #[inline(always)]
    unsafe fn dot_brains(sum: Self::F, a: Self::B, b: Self::B) -> Self::F {
        use std::arch::x86_64::*;
        unsafe {
            let a = std::mem::transmute::<__m512i, __m512bh>(a);
            let b = std::mem::transmute::<__m512i, __m512bh>(b);
            _mm512_dpbf16_ps(sum, a, b)
        }
    }
    #[inline(always)]
    unsafe fn interleave(words: Self::B) -> Self::B {
        use std::arch::x86_64::*;
        const PLACES: [u16; 32] = {
            let mut places = [0; 32];
            let mut i = 0;
            while i < 16 {
                (places[2 * i], places[2 * i + 1]) = (i as u16, 16 + i as u16);
                i += 1;
            }
            places
        };
        unsafe { _mm512_permutexvar_epi16(_mm512_loadu_si512(PLACES.as_ptr().cast()), words) }
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self::F {
        use std::arch::x86_64::*;
        unsafe {
            let halves = _mm512_cvtph_ps(e4m3_halves(p));
            _mm512_mul_ps(halves, _mm512_set1_ps(256.0))
        }
    }
    #[inline(always)]
    unsafe fn lookup_nibbles(table: *const f32, p: *const u8, high: bool) -> Self::F {
        use std::arch::x86_64::*;
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let codes = if high {
                _mm512_srli_epi32::<4>(wide)
            } else {
                wide
            };
            // Only the four lowest bits of an index count.
            _mm512_permutexvar_ps(codes, _mm512_loadu_ps(table))
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, b: Self::B) {
        unsafe { std::arch::x86_64::_mm512_storeu_si512(p.cast(), b) }
    }
    #[inline(always)]
    unsafe fn words(lower: Self::B, upper: Self::B) -> [Self::B; 2] {
        use std::arch::x86_64::*;
        unsafe {
            [
                _mm512_unpacklo_epi8(lower, upper),
                _mm512_unpackhi_epi8(lower, upper),
            ]
        }
    }
    #[inline(always)]
    unsafe fn widen(words: Self::B) -> [Self::F; 2] {
        use std::arch::x86_64::*;
        unsafe {
            let odd = _mm512_and_si512(words, _mm512_set1_epi32(UPPER.cast_signed()));
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)),
                _mm512_castsi512_ps(odd),
            ]
        }
    }
}

#[cfg(target_arch = "x86_64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> SmallFloats for super::avx2::Avx2<VNNI> {
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self::F {
        use std::arch::x86_64::*;
        unsafe {
            let bits = e4m3_halves(p);
            let by = _mm256_set1_ps(256.0);
            super::avx2::Floats(
                _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), by),
                _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(bits)), by),
            )
        }
    }
    #[inline(always)]
    unsafe fn lookup_nibbles(table: *const f32, p: *const u8, high: bool) -> Self::F {
        use std::arch::x86_64::*;
        unsafe {
            let halves = (_mm256_loadu_ps(table), _mm256_loadu_ps(table.add(8)));
            super::avx2::Floats(
                eight_nibbles(halves, p, high),
                eight_nibbles(halves, p.add(8), high),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, b: Self::B) {
        use std::arch::x86_64::*;
        unsafe {
            _mm256_storeu_si256(p.cast(), b.0);
            _mm256_storeu_si256(p.add(32).cast(), b.1);
        }
    }
    #[inline(always)]
    unsafe fn words(lower: Self::B, upper: Self::B) -> [Self::B; 2] {
        use super::avx2::Ints;
        use std::arch::x86_64::*;
        unsafe {
            [
                Ints(
                    _mm256_unpacklo_epi8(lower.0, upper.0),
                    _mm256_unpacklo_epi8(lower.1, upper.1),
                ),
                Ints(
                    _mm256_unpackhi_epi8(lower.0, upper.0),
                    _mm256_unpackhi_epi8(lower.1, upper.1),
                ),
            ]
        }
    }
    #[inline(always)]
    unsafe fn widen(words: Self::B) -> [Self::F; 2] {
        use super::avx2::Floats;
        use std::arch::x86_64::*;
        unsafe {
            let even = |w: __m256i| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
            let upper = _mm256_set1_epi32(UPPER.cast_signed());
            let odd = |w: __m256i| _mm256_castsi256_ps(_mm256_and_si256(w, upper));
            [
                Floats(even(words.0), even(words.1)),
                Floats(odd(words.0), odd(words.1)),
            ]
        }
    }
}

#[cfg(target_arch = "aarch64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const DOT: bool> SmallFloats for super::neon::Neon<DOT> {
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self::F {
        use std::arch::aarch64::*;
        unsafe {
            // Half-precision numbers of the same bits are a 256th as large.
            let bytes = vld1q_u8(p);
            let halves = |wide: uint16x8_t| {
                let sign = vshlq_n_u16::<8>(vandq_u16(wide, vdupq_n_u16(0x80)));
                vorrq_u16(sign, vshlq_n_u16::<7>(vandq_u16(wide, vdupq_n_u16(0x7f))))
            };
            let (low, high) = (
                halves(vmovl_u8(vget_low_u8(bytes))),
                halves(vmovl_high_u8(bytes)),
            );
            let quarters = [
                vget_low_u16(low),
                vget_high_u16(low),
                vget_low_u16(high),
                vget_high_u16(high),
            ];
            super::neon::map(quarters, |q| vmulq_n_f32(super::neon::widen(q), 256.0))
        }
    }
    #[inline(always)]
    unsafe fn lookup_nibbles(table: *const f32, p: *const u8, high: bool) -> Self::F {
        unsafe {
            let shift = if high { 4 } else { 0 };
            let level = |i: usize| *table.add(usize::from(*p.add(i) >> shift & 15));
            let values: [f32; 16] = std::array::from_fn(level);
            Self::load(values.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, b: Self::B) {
        for (q, b) in b.into_iter().enumerate() {
            unsafe { std::arch::aarch64::vst1q_u8(p.add(16 * q), b) };
        }
    }
    #[inline(always)]
    unsafe fn words(lower: Self::B, upper: Self::B) -> [Self::B; 2] {
        use std::arch::aarch64::*;
        [
            std::array::from_fn(|q| unsafe { vzip1q_u8(lower[q], upper[q]) }),
            std::array::from_fn(|q| unsafe { vzip2q_u8(lower[q], upper[q]) }),
        ]
    }
    #[inline(always)]
    unsafe fn widen(words: Self::B) -> [Self::F; 2] {
        use std::arch::aarch64::*;
        let even = |w: uint8x16_t| unsafe { vshlq_n_u32::<16>(vreinterpretq_u32_u8(w)) };
        let odd = |w: uint8x16_t| unsafe { vandq_u32(vreinterpretq_u32_u8(w), vdupq_n_u32(UPPER)) };
        [
            words.map(|w| unsafe { vreinterpretq_f32_u32(even(w)) }),
            words.map(|w| unsafe { vreinterpretq_f32_u32(odd(w)) }),
        ]
    }
}

// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl SmallFloats for super::scalar::Scalar {
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self::F {
        std::array::from_fn(|i| rusty_loader::formats::e4m3(unsafe { *p.add(i) }))
    }
    #[inline(always)]
    unsafe fn lookup_nibbles(table: *const f32, p: *const u8, high: bool) -> Self::F {
        let shift = if high { 4 } else { 0 };
        std::array::from_fn(|i| unsafe { *table.add(usize::from(*p.add(i) >> shift & 15)) })
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, b: Self::B) {
        unsafe { p.cast::<Self::B>().write_unaligned(b) }
    }
    #[inline(always)]
    unsafe fn words(lower: Self::B, upper: Self::B) -> [Self::B; 2] {
        let byte = |v: usize, i: usize| {
            let at = 16 * (i / 16) + 8 * v + i % 16 / 2;
            if i.is_multiple_of(2) {
                lower[at]
            } else {
                upper[at]
            }
        };
        std::array::from_fn(|v| std::array::from_fn(|i| byte(v, i)))
    }
    #[inline(always)]
    unsafe fn widen(words: Self::B) -> [Self::F; 2] {
        let (pairs, _) = words.as_chunks::<4>();
        let value = |odd: u32, i: usize| {
            let pair = u32::from_le_bytes(pairs[i]);
            f32::from_bits(if odd == 0 { pair << 16 } else { pair & UPPER })
        };
        [0, 1].map(|odd| std::array::from_fn(|i| value(odd, i)))
    }
}
