//! Small floats as checkpoints store them, in registers: E4M3 bytes, and nibbles that name an entry of a table.

use super::Vector;

/// What a [`Vector`] makes of small floats.
///
/// # Safety
/// As for [`Vector`].
pub(in crate::cpu) trait SmallFloats: Vector {
    /// Sixteen E4M3 floats; what stands for no number is 480.
    unsafe fn load_e4m3(p: *const u8) -> Self::F;
    /// Entries of a table of sixteen by the low or high halves of sixteen bytes.
    unsafe fn lookup_nibbles(table: *const f32, p: *const u8, high: bool) -> Self::F;
    /// Sixty-four brain floats of these bytes: lane `4 q + t` of vector `v` is of byte `16 q + 8 (v / 2) + 2 t + v % 2`.
    unsafe fn brain_floats(second: Self::B, first: Self::B) -> [Self::F; 4];
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

#[cfg(target_arch = "x86_64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl SmallFloats for super::avx512::Avx512 {
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
    unsafe fn brain_floats(second: Self::B, first: Self::B) -> [Self::F; 4] {
        use std::arch::x86_64::*;
        unsafe {
            let (a, b) = (
                _mm512_unpacklo_epi8(second, first),
                _mm512_unpackhi_epi8(second, first),
            );
            let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            [
                _mm512_slli_epi32::<16>(a),
                _mm512_and_si512(a, upper),
                _mm512_slli_epi32::<16>(b),
                _mm512_and_si512(b, upper),
            ]
            .map(|f| _mm512_castsi512_ps(f))
        }
    }
}

#[cfg(target_arch = "x86_64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl SmallFloats for super::avx2::Avx2 {
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
            let (low_half, high_half) = (_mm256_loadu_ps(table), _mm256_loadu_ps(table.add(8)));
            let one = |p: *const u8| {
                let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
                let codes = if high {
                    _mm256_srli_epi32::<4>(wide)
                } else {
                    wide
                };
                // Three bits choose inside a half, the fourth between them.
                let a = _mm256_permutevar8x32_ps(low_half, codes);
                let b = _mm256_permutevar8x32_ps(high_half, codes);
                let fourth = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
                _mm256_blendv_ps(a, b, fourth)
            };
            super::avx2::Floats(one(p), one(p.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn brain_floats(second: Self::B, first: Self::B) -> [Self::F; 4] {
        use std::arch::x86_64::*;
        unsafe {
            let one = |second: __m256i, first: __m256i| {
                let a = _mm256_unpacklo_epi8(second, first);
                let b = _mm256_unpackhi_epi8(second, first);
                let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a)),
                    _mm256_castsi256_ps(_mm256_and_si256(a, upper)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b)),
                    _mm256_castsi256_ps(_mm256_and_si256(b, upper)),
                ]
            };
            let (low, high) = (one(second.0, first.0), one(second.1, first.1));
            [
                super::avx2::Floats(low[0], high[0]),
                super::avx2::Floats(low[1], high[1]),
                super::avx2::Floats(low[2], high[2]),
                super::avx2::Floats(low[3], high[3]),
            ]
        }
    }
}

#[cfg(target_arch = "aarch64")]
// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl SmallFloats for super::neon::Neon {
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
    unsafe fn brain_floats(second: Self::B, first: Self::B) -> [Self::F; 4] {
        use std::arch::aarch64::*;
        let quarter = |q: usize, v: usize| unsafe {
            let words = match v / 2 {
                0 => vzip1q_u8(second[q], first[q]),
                _ => vzip2q_u8(second[q], first[q]),
            };
            let words = vreinterpretq_u32_u8(words);
            vreinterpretq_f32_u32(match v % 2 {
                0 => vshlq_n_u32::<16>(words),
                _ => vandq_u32(words, vdupq_n_u32(0xffff_0000)),
            })
        };
        std::array::from_fn(|v| std::array::from_fn(|q| quarter(q, v)))
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
    unsafe fn brain_floats(second: Self::B, first: Self::B) -> [Self::F; 4] {
        let value = |v: usize, lane: usize| {
            let at = 16 * (lane / 4) + 8 * (v / 2) + 2 * (lane % 4) + v % 2;
            f32::from_bits(u32::from(first[at]) << 24 | u32::from(second[at]) << 16)
        };
        std::array::from_fn(|v| std::array::from_fn(|lane| value(v, lane)))
    }
}
