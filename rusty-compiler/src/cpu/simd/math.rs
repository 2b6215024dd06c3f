//! Elementary functions over lanes.

use super::Vector;
use rusty_graph::UnaryOp;

/// `e^x`, relative error below 3e-7; 0 below -87.3 and `e^88` above 88.
///
/// Cephes' `expf`: `x = n ln 2 + r`, a polynomial in `r`, scaled by `2^n`.
#[inline(always)]
pub(in crate::cpu) unsafe fn exp<V: Vector>(x: V::F) -> V::F {
    const LOWEST: f32 = -87.3;
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        let lowest = V::splat(LOWEST);
        let c = V::min(V::max(x, lowest), V::splat(88.0));
        let n = V::round(V::mul(c, V::splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, the first with few enough bits that the product is exact.
        let r = V::fnma(n, V::splat(0.693_359_4), c);
        let r = V::fnma(n, V::splat(-2.121_944_4e-4), r);
        let mut p = V::splat(1.987_569_1e-4);
        for c in [
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            5e-1,
        ] {
            p = V::fma(p, r, V::splat(c));
        }
        let p = V::fma(p, V::mul(r, r), V::add(r, V::splat(1.0)));
        V::zero_below(x, lowest, V::mul(p, V::exp2i(n)))
    }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
unsafe fn sigmoid<V: Vector>(x: V::F) -> V::F {
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        let one = V::splat(1.0);
        V::div(one, V::add(one, exp::<V>(V::sub(V::splat(0.0), x))))
    }
}

/// `(1 - e) / (1 + e)` with `e = e^(-2 |x|)`, and the sign of `x`; absolute error below 2e-7.
#[inline(always)]
pub(in crate::cpu) unsafe fn tanh<V: Vector>(x: V::F) -> V::F {
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        let one = V::splat(1.0);
        let e = exp::<V>(V::mul(V::abs(x), V::splat(-2.0)));
        V::copysign(V::div(V::sub(one, e), V::add(one, e)), x)
    }
}

/// The error function, absolute error below 5e-7 (Abramowitz and Stegun 7.1.26).
#[inline(always)]
unsafe fn erf<V: Vector>(x: V::F) -> V::F {
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        let one = V::splat(1.0);
        let a = V::abs(x);
        let t = V::div(one, V::fma(a, V::splat(0.327_591_1), one));
        let mut p = V::splat(1.061_405_4);
        for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            p = V::fma(p, t, V::splat(c));
        }
        let e = exp::<V>(V::sub(V::splat(0.0), V::mul(a, a)));
        V::copysign(V::sub(one, V::mul(V::mul(p, t), e)), x)
    }
}

/// An elementwise function of the plan.
#[inline(always)]
pub(in crate::cpu) unsafe fn unary<V: Vector>(op: UnaryOp, x: V::F) -> V::F {
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        let half = V::splat(0.5);
        let one = V::splat(1.0);
        match op {
            UnaryOp::Silu => V::mul(x, sigmoid::<V>(x)),
            UnaryOp::Sigmoid => sigmoid::<V>(x),
            UnaryOp::Tanh => tanh::<V>(x),
            UnaryOp::Relu => V::max(x, V::splat(0.0)),
            UnaryOp::Neg => V::sub(V::splat(0.0), x),
            UnaryOp::Gelu => {
                let e = erf::<V>(V::mul(x, V::splat(std::f32::consts::FRAC_1_SQRT_2)));
                V::mul(V::mul(x, half), V::add(one, e))
            }
            UnaryOp::GeluTanh => {
                // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
                let cubed = V::mul(V::mul(x, x), x);
                let inner = V::fma(cubed, V::splat(0.044_715), x);
                let t = tanh::<V>(V::mul(inner, V::splat(0.797_884_6)));
                V::mul(V::mul(x, half), V::add(one, t))
            }
        }
    }
}
