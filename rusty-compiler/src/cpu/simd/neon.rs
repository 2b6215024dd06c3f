//! Arm NEON: four 128-bit registers per vector.
//!
//! The base instruction set of 64-bit Arm is used, so every such machine runs it, and `sdot` where there is that.

use super::Vector;
use std::arch::aarch64::*;
use std::arch::asm;

/// Four 128-bit registers per vector; with dot products of bytes or without.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Neon<const DOT: bool>;

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];
type B = [uint8x16_t; 4];

#[inline(always)]
pub(super) fn map<T: Copy, U>(a: [T; 4], f: impl Fn(T) -> U) -> [U; 4] {
    [f(a[0]), f(a[1]), f(a[2]), f(a[3])]
}

#[inline(always)]
pub(super) fn zip<T: Copy, U: Copy, R>(a: [T; 4], b: [U; 4], f: impl Fn(T, U) -> R) -> [R; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

/// Half to single precision.
#[inline(always)]
pub(super) unsafe fn widen(h: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: FCVTL belongs to the base instruction set and touches registers only.
    unsafe {
        asm!("fcvtl {o:v}.4s, {i:v}.4h", o = lateout(vreg) out, i = in(vreg) h,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Single to half precision, to nearest even.
#[inline(always)]
unsafe fn narrow(f: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: as in `widen`, for FCVTN.
    unsafe {
        asm!("fcvtn {o:v}.4h, {i:v}.4s", o = lateout(vreg) out, i = in(vreg) f,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl<const DOT: bool> Vector for Neon<DOT> {
    type F = F;
    type I = I;
    type B = B;

    const FLOAT_TILE: (usize, usize) = (2, 2);
    const ATTN_SUMS: usize = 4;

    #[inline(always)]
    unsafe fn splat(v: f32) -> F {
        unsafe { [vdupq_n_f32(v); 4] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { map([0, 4, 8, 12], |i| vld1q_f32(p.add(i))) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> F {
        unsafe {
            let mut lanes = [0f32; 16];
            // Bytes need no alignment.
            let to = lanes.as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(p.cast(), to, n * size_of::<f32>());
            Self::load(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        unsafe {
            for (i, v) in v.into_iter().enumerate() {
                vst1q_f32(p.add(4 * i), v);
            }
        }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: F, n: usize) {
        unsafe {
            let mut lanes = [0f32; 16];
            Self::store(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { vdivq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { vminnmq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { vmaxnmq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| unsafe { vfmaq_f32(c[i], a[i], b[i]) })
    }
    #[inline(always)]
    unsafe fn fnma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| unsafe { vfmsq_f32(c[i], a[i], b[i]) })
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        map(a, |a| unsafe { vabsq_f32(a) })
    }
    #[inline(always)]
    unsafe fn copysign(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe {
            vbslq_f32(vdupq_n_u32(1 << 31), b, a)
        })
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        map(a, |a| unsafe { vrndnq_f32(a) })
    }
    #[inline(always)]
    unsafe fn exp2i(n: F) -> F {
        map(n, |n| unsafe {
            let e = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(e))
        })
    }
    #[inline(always)]
    unsafe fn zero_below(x: F, limit: F, v: F) -> F {
        std::array::from_fn(|i| unsafe {
            let keep = vcgeq_f32(x[i], limit[i]);
            vreinterpretq_f32_u32(vandq_u32(keep, vreinterpretq_u32_f32(v[i])))
        })
    }
    #[inline(always)]
    unsafe fn sum(a: F) -> f32 {
        unsafe { vaddvq_f32(vaddq_f32(vaddq_f32(a[0], a[1]), vaddq_f32(a[2], a[3]))) }
    }
    #[inline(always)]
    unsafe fn largest(a: F) -> f32 {
        unsafe {
            vmaxvq_f32(vmaxnmq_f32(
                vmaxnmq_f32(a[0], a[1]),
                vmaxnmq_f32(a[2], a[3]),
            ))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        unsafe { map([0, 4, 8, 12], |i| widen(vld1_u16(p.add(i)))) }
    }
    #[inline(always)]
    unsafe fn half(p: *const u16) -> f32 {
        unsafe { vgetq_lane_f32::<0>(widen(vdup_n_u16(p.read_unaligned()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        unsafe {
            map([0, 4, 8, 12], |i| {
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(i))))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        unsafe {
            let bytes = vld1q_u8(p);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_high_u16(low)),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_high_u16(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> F {
        unsafe {
            let bytes = vld1q_s8(p);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        unsafe {
            for (i, v) in v.into_iter().enumerate() {
                vst1_u16(p.add(4 * i), narrow(v));
            }
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: F) -> I {
        unsafe {
            let i = map(v, |v| vcvtnq_s32_f32(v));
            let low = vcombine_s16(vqmovn_s32(i[0]), vqmovn_s32(i[1]));
            let high = vcombine_s16(vqmovn_s32(i[2]), vqmovn_s32(i[3]));
            vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
            i
        }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> I {
        unsafe { [vdupq_n_s32(v); 4] }
    }
    #[inline(always)]
    unsafe fn sum_i(v: I) -> i32 {
        unsafe { vaddvq_s32(vaddq_s32(vaddq_s32(v[0], v[1]), vaddq_s32(v[2], v[3]))) }
    }
    #[inline(always)]
    unsafe fn to_f(v: I) -> F {
        map(v, |v| unsafe { vcvtq_f32_s32(v) })
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> B {
        unsafe { map([0, 16, 32, 48], |i| vld1q_u8(p.add(i))) }
    }
    #[inline(always)]
    unsafe fn bits(b: B, from: i32, to: i32, width: u32) -> B {
        map(b, |b| unsafe {
            let moved = vshlq_u8(b, vdupq_n_s8((to - from) as i8));
            vandq_u8(moved, vdupq_n_u8((((1 << width) - 1) << to) as u8))
        })
    }
    #[inline(always)]
    unsafe fn or(a: B, b: B) -> B {
        zip(a, b, |a, b| unsafe { vorrq_u8(a, b) })
    }
    #[inline(always)]
    unsafe fn table(p: *const u8) -> B {
        unsafe { [vld1q_u8(p); 4] }
    }
    #[inline(always)]
    unsafe fn lookup(table: B, codes: B) -> B {
        zip(table, codes, |t, c| unsafe { vqtbl1q_u8(t, c) })
    }
    #[inline(always)]
    unsafe fn half_quads(p: *const u8) -> F {
        std::array::from_fn(|i| unsafe { vdupq_n_f32(Self::half(p.cast::<u16>().add(i))) })
    }
    #[inline(always)]
    unsafe fn repeat_bytes(p: *const u8) -> B {
        unsafe { [vld1q_u8(p); 4] }
    }
}
