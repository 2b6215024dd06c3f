//! Portable code: arrays that the compiler may vectorize with whatever the build allows.

use super::{LANES, Vector};
use half::f16;

/// Arrays of sixteen lanes.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];
type B = [u8; 64];

#[inline(always)]
fn map(a: F, f: impl Fn(f32) -> f32) -> F {
    std::array::from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
pub(super) fn dot4(codes: &B, lane: usize, x: i32, offset: i32) -> i32 {
    let x = x.to_le_bytes();
    let mut sum = 0;
    for j in 0..4 {
        sum += (i32::from(codes[4 * lane + j]) - offset) * i32::from(x[j] as i8);
    }
    sum
}

// SAFETY (all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Scalar {
    type F = F;
    type I = I;
    type B = B;

    const FLOAT_TILE: (usize, usize) = (1, 2);
    const ATTN_SUMS: usize = 4;

    #[inline(always)]
    unsafe fn splat(v: f32) -> F {
        [v; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> F {
        std::array::from_fn(|i| {
            if i < n {
                unsafe { p.add(i).read_unaligned() }
            } else {
                0.0
            }
        })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        unsafe { p.cast::<F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: F, n: usize) {
        for (i, v) in v.iter().enumerate().take(n) {
            unsafe { p.add(i).write_unaligned(*v) }
        }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn fnma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| c[i] - a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        map(a, f32::abs)
    }
    #[inline(always)]
    unsafe fn copysign(a: F, b: F) -> F {
        zip(a, b, f32::copysign)
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        map(a, f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn exp2i(n: F) -> F {
        map(n, |n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn zero_below(x: F, limit: F, v: F) -> F {
        std::array::from_fn(|i| if x[i] >= limit[i] { v[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn sum(a: F) -> f32 {
        // A tree, as the vector units do it.
        let b: [f32; 8] = std::array::from_fn(|i| a[i] + a[i + 8]);
        let c: [f32; 4] = std::array::from_fn(|i| b[i] + b[i + 4]);
        (c[0] + c[2]) + (c[1] + c[3])
    }
    #[inline(always)]
    unsafe fn largest(a: F) -> f32 {
        a.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        std::array::from_fn(|i| f16::from_bits(unsafe { p.add(i).read_unaligned() }).to_f32())
    }
    #[inline(always)]
    unsafe fn half(p: *const u16) -> f32 {
        f16::from_bits(unsafe { p.read_unaligned() }).to_f32()
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        std::array::from_fn(|i| {
            f32::from_bits(u32::from(unsafe { p.add(i).read_unaligned() }) << 16)
        })
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        std::array::from_fn(|i| f32::from(unsafe { *p.add(i) }))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> F {
        std::array::from_fn(|i| f32::from(unsafe { *p.add(i) }))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        for (i, v) in v.iter().enumerate() {
            unsafe { p.add(i).write_unaligned(f16::from_f32(*v).to_bits()) }
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: F) -> I {
        for (i, v) in v.iter().enumerate() {
            unsafe { *p.add(i) = *v as i8 }
        }
        v.map(|v| v as i32)
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> I {
        [v; LANES]
    }
    #[inline(always)]
    unsafe fn sum_i(v: I) -> i32 {
        v.iter().sum()
    }
    #[inline(always)]
    unsafe fn to_f(v: I) -> F {
        v.map(|v| v as f32)
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> B {
        unsafe { p.cast::<B>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn bits(b: B, from: i32, to: i32, width: u32) -> B {
        b.map(|b| ((b >> from) & ((1u32 << width) - 1) as u8) << to)
    }
    #[inline(always)]
    unsafe fn or(a: B, b: B) -> B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn table(p: *const u8) -> B {
        std::array::from_fn(|i| unsafe { *p.add(i % 16) })
    }
    #[inline(always)]
    unsafe fn lookup(table: B, codes: B) -> B {
        codes.map(|c| table[usize::from(c & 15)])
    }
    #[inline(always)]
    unsafe fn half_quads(p: *const u8) -> F {
        std::array::from_fn(|i| unsafe { Self::half(p.cast::<u16>().add(i / 4)) })
    }
    #[inline(always)]
    unsafe fn repeat_bytes(p: *const u8) -> B {
        std::array::from_fn(|i| unsafe { *p.add(i % LANES) })
    }
}
