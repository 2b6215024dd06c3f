//! AVX-512 (F, BW, DQ, VL) with VNNI.

use super::Vector;
use crate::cpu::amx;
use crate::cpu::forms::Form;
use crate::cpu::prefetch::Ahead;
use crate::cpu::quantize::InputRows;
use crate::cpu::tile::Panel;
use std::arch::x86_64::*;

/// One 512-bit register per vector.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx512;

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const FLOAT_TILE: (usize, usize) = (6, 4);
    const ATTN_SUMS: usize = 16;

    #[inline(always)]
    unsafe fn tiles<F: Form>(
        panel: Panel,
        x: InputRows,
        place: (usize, usize),
        out: (*mut f32, usize),
        ahead: &mut Ahead,
    ) -> usize {
        unsafe { amx::tiles::<F>(panel, x, place, out, ahead) }
    }

    #[inline(always)]
    unsafe fn splat(v: f32) -> __m512 {
        unsafe { _mm512_set1_ps(v) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn copysign(a: __m512, b: __m512) -> __m512 {
        unsafe {
            let sign = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b))
        }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT }>(a) }
    }
    #[inline(always)]
    unsafe fn exp2i(n: __m512) -> __m512 {
        unsafe {
            let e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(e))
        }
    }
    #[inline(always)]
    unsafe fn zero_below(x: __m512, limit: __m512, v: __m512) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, limit), v) }
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    unsafe fn largest(a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn half(p: *const u16) -> f32 {
        unsafe {
            let bits = _mm_cvtsi32_si128(i32::from(p.read_unaligned()));
            _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_castsi128_si256(bits)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        unsafe {
            _mm256_storeu_si256(
                p.cast(),
                _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: __m512) -> __m512i {
        unsafe {
            let i = _mm512_cvtps_epi32(v);
            _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(i));
            i
        }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(v) }
    }
    #[inline(always)]
    unsafe fn sum_i(v: __m512i) -> i32 {
        unsafe { _mm512_reduce_add_epi32(v) }
    }
    #[inline(always)]
    unsafe fn to_f(v: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn bits(b: __m512i, from: i32, to: i32, width: u32) -> __m512i {
        unsafe {
            let moved = match to - from {
                0 => b,
                up @ 1.. => _mm512_sll_epi16(b, _mm_cvtsi32_si128(up)),
                down => _mm512_srl_epi16(b, _mm_cvtsi32_si128(-down)),
            };
            _mm512_and_si512(moved, _mm512_set1_epi8((((1 << width) - 1) << to) as i8))
        }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn table(p: *const u8) -> __m512i {
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn lookup(table: __m512i, codes: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(table, codes) }
    }
    #[inline(always)]
    unsafe fn half_quads(p: *const u8) -> __m512 {
        unsafe {
            let four = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_loadl_epi64(p.cast())));
            let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            _mm512_permutexvar_ps(lanes, four)
        }
    }
    #[inline(always)]
    unsafe fn repeat_bytes(p: *const u8) -> __m512i {
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast())) }
    }
}

/// Sixteen rows of sixteen double words, as columns.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
pub(in crate::cpu) unsafe fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let mut pairs = rows;
        for i in (0..16).step_by(2) {
            pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        let mut fours = pairs;
        for i in (0..16).step_by(4) {
            fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
            fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
            fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
            fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
        }
        // Quarter `l` of `fours[4 i + j]` holds column `4 l + j` of rows `4 i ..`.
        let mut columns = fours;
        for j in 0..4 {
            let (a, b) = (fours[j], fours[4 + j]);
            let (c, d) = (fours[8 + j], fours[12 + j]);
            let (even, odd) = (
                _mm512_shuffle_i32x4::<0x88>(a, b),
                _mm512_shuffle_i32x4::<0xdd>(a, b),
            );
            let (even2, odd2) = (
                _mm512_shuffle_i32x4::<0x88>(c, d),
                _mm512_shuffle_i32x4::<0xdd>(c, d),
            );
            columns[j] = _mm512_shuffle_i32x4::<0x88>(even, even2);
            columns[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd, odd2);
            columns[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even, even2);
            columns[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd, odd2);
        }
        columns
    }
}
