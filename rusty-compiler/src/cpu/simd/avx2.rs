//! AVX2 with FMA and F16C, and AVX-VNNI where there is that: two 256-bit registers per vector.

use super::Vector;
use std::arch::x86_64::*;

/// Two 256-bit registers per vector; with AVX-VNNI or without.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx2<const VNNI: bool>;

#[derive(Clone, Copy)]
pub(in crate::cpu) struct Floats(pub(super) __m256, pub(super) __m256);

#[derive(Clone, Copy)]
pub(in crate::cpu) struct Ints(pub(super) __m256i, pub(super) __m256i);

macro_rules! both {
    ($f:ident, $a:expr, $b:expr) => {
        Floats($f($a.0, $b.0), $f($a.1, $b.1))
    };
}

// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> Vector for Avx2<VNNI> {
    type F = Floats;
    type I = Ints;
    type B = Ints;

    const FLOAT_TILE: (usize, usize) = (2, 3);
    const ATTN_SUMS: usize = 4;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Floats {
        unsafe { Floats(_mm256_set1_ps(v), _mm256_set1_ps(v)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Floats {
        unsafe { Floats(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Floats {
        unsafe {
            let mut lanes = [0f32; 16];
            // Bytes need no alignment.
            let to = lanes.as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(p.cast(), to, n * size_of::<f32>());
            Self::load(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Floats) {
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: Floats, n: usize) {
        unsafe {
            let mut lanes = [0f32; 16];
            Self::store(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Floats, b: Floats) -> Floats {
        unsafe { both!(_mm256_add_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Floats, b: Floats) -> Floats {
        unsafe { both!(_mm256_sub_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Floats, b: Floats) -> Floats {
        unsafe { both!(_mm256_mul_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Floats, b: Floats) -> Floats {
        unsafe { both!(_mm256_div_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Floats, b: Floats) -> Floats {
        unsafe { both!(_mm256_min_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: Floats, b: Floats) -> Floats {
        unsafe { both!(_mm256_max_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
        unsafe {
            Floats(
                _mm256_fmadd_ps(a.0, b.0, c.0),
                _mm256_fmadd_ps(a.1, b.1, c.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn fnma(a: Floats, b: Floats, c: Floats) -> Floats {
        unsafe {
            Floats(
                _mm256_fnmadd_ps(a.0, b.0, c.0),
                _mm256_fnmadd_ps(a.1, b.1, c.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn abs(a: Floats) -> Floats {
        unsafe {
            let sign = Self::splat(-0.0);
            both!(_mm256_andnot_ps, sign, a)
        }
    }
    #[inline(always)]
    unsafe fn copysign(a: Floats, b: Floats) -> Floats {
        unsafe {
            let sign = Self::splat(-0.0);
            let (magnitude, sign) = (Self::abs(a), both!(_mm256_and_ps, sign, b));
            both!(_mm256_or_ps, magnitude, sign)
        }
    }
    #[inline(always)]
    unsafe fn round(a: Floats) -> Floats {
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            Floats(
                _mm256_round_ps::<NEAREST>(a.0),
                _mm256_round_ps::<NEAREST>(a.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn exp2i(n: Floats) -> Floats {
        unsafe {
            let one = |n: __m256| {
                let e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(e))
            };
            Floats(one(n.0), one(n.1))
        }
    }
    #[inline(always)]
    unsafe fn zero_below(x: Floats, limit: Floats, v: Floats) -> Floats {
        unsafe {
            Floats(
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(x.0, limit.0), v.0),
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(x.1, limit.1), v.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn sum(a: Floats) -> f32 {
        unsafe {
            let v = _mm256_add_ps(a.0, a.1);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }
    #[inline(always)]
    unsafe fn largest(a: Floats) -> f32 {
        unsafe {
            let v = _mm256_max_ps(a.0, a.1);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }
    #[inline(always)]
    unsafe fn half(p: *const u16) -> f32 {
        unsafe {
            let bits = _mm_cvtsi32_si128(i32::from(p.read_unaligned()));
            _mm_cvtss_f32(_mm_cvtph_ps(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Floats {
        unsafe {
            Floats(
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Floats {
        unsafe {
            let one = |p: *const u16| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            };
            Floats(one(p), one(p.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Floats {
        unsafe {
            let one =
                |p: *const u8| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())));
            Floats(one(p), one(p.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Floats {
        unsafe {
            let one =
                |p: *const i8| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
            Floats(one(p), one(p.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Floats) {
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<NEAREST>(v.0));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<NEAREST>(v.1));
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: Floats) -> Ints {
        unsafe {
            let i = Ints(_mm256_cvtps_epi32(v.0), _mm256_cvtps_epi32(v.1));
            // Packing works within 128-bit halves; the permutation puts the four quads in order.
            let words = _mm256_packs_epi32(i.0, i.1);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(p.cast(), bytes);
            i
        }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> Ints {
        unsafe { Ints(_mm256_set1_epi32(v), _mm256_set1_epi32(v)) }
    }
    #[inline(always)]
    unsafe fn sum_i(v: Ints) -> i32 {
        unsafe {
            let v = _mm256_add_epi32(v.0, v.1);
            let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
            _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
        }
    }
    #[inline(always)]
    unsafe fn to_f(v: Ints) -> Floats {
        unsafe { Floats(_mm256_cvtepi32_ps(v.0), _mm256_cvtepi32_ps(v.1)) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Ints {
        unsafe {
            Ints(
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(32).cast()),
            )
        }
    }
    #[inline(always)]
    unsafe fn bits(b: Ints, from: i32, to: i32, width: u32) -> Ints {
        unsafe {
            let mask = _mm256_set1_epi8((((1 << width) - 1) << to) as i8);
            let count = _mm_cvtsi32_si128((to - from).abs());
            let one = |b: __m256i| {
                let moved = match to - from {
                    0 => b,
                    1.. => _mm256_sll_epi16(b, count),
                    _ => _mm256_srl_epi16(b, count),
                };
                _mm256_and_si256(moved, mask)
            };
            Ints(one(b.0), one(b.1))
        }
    }
    #[inline(always)]
    unsafe fn or(a: Ints, b: Ints) -> Ints {
        unsafe { Ints(_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn table(p: *const u8) -> Ints {
        unsafe {
            let t = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
            Ints(t, t)
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: Ints, codes: Ints) -> Ints {
        unsafe {
            Ints(
                _mm256_shuffle_epi8(table.0, codes.0),
                _mm256_shuffle_epi8(table.1, codes.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn half_quads(p: *const u8) -> Floats {
        unsafe {
            let four = _mm256_castps128_ps256(_mm_cvtph_ps(_mm_loadl_epi64(p.cast())));
            let lanes = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
            let others = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
            Floats(
                _mm256_permutevar8x32_ps(four, lanes),
                _mm256_permutevar8x32_ps(four, others),
            )
        }
    }
    #[inline(always)]
    unsafe fn repeat_bytes(p: *const u8) -> Ints {
        unsafe { Self::table(p) }
    }
}
