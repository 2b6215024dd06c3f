//! What instructions of bodies do to some lanes of a row, in vectors.
//!
//! Every function here is inlined into an entry that is compiled for its instruction set; pointers lead to as many lanes as
//! a function is told, which is the caller's duty.

use super::simd::{LANES, Vector, math};
use rusty_graph::{BinaryOp, RopeLayout, UnaryOp};

/// Lanes `i ..` of `p`, `n` of them where fewer than a vector are left.
#[inline(always)]
pub(super) unsafe fn take<V: Vector>(p: *const f32, i: usize, n: usize) -> V::F {
    // SAFETY: the caller's duty.
    unsafe {
        if n == LANES {
            V::load(p.add(i))
        } else {
            V::load_part(p.add(i), n)
        }
    }
}

#[inline(always)]
unsafe fn put<V: Vector>(p: *mut f32, i: usize, n: usize, v: V::F) {
    // SAFETY: the caller's duty.
    unsafe {
        if n == LANES {
            V::store(p.add(i), v);
        } else {
            V::store_part(p.add(i), v, n);
        }
    }
}

/// `out[i] = f(i)` by vectors; `f` gets the first lane and the number of lanes.
#[inline(always)]
pub(super) unsafe fn map<V: Vector>(count: usize, out: *mut f32, f: impl Fn(usize, usize) -> V::F) {
    let whole = count / LANES * LANES;
    let mut i = 0;
    // SAFETY: the caller's duty.
    unsafe {
        while i < whole {
            put::<V>(out, i, LANES, f(i, LANES));
            i += LANES;
        }
        if i < count {
            put::<V>(out, i, count - i, f(i, count - i));
        }
    }
}

#[inline(always)]
pub(super) unsafe fn unary<V: Vector>(op: UnaryOp, x: *const f32, out: *mut f32, count: usize) {
    // A loop of its own: as a closure it would be too large to be inlined, and outside of the entry it would be compiled
    // without the instruction set.
    let mut i = 0;
    // SAFETY: the caller's duty.
    unsafe {
        while i < count {
            let n = (count - i).min(LANES);
            put::<V>(out, i, n, math::unary::<V>(op, take::<V>(x, i, n)));
            i += LANES;
        }
    }
}

#[inline(always)]
pub(super) unsafe fn binary<V: Vector>(
    op: BinaryOp,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    count: usize,
) {
    // SAFETY: the caller's duty.
    unsafe {
        let two = |i, n| (take::<V>(a, i, n), take::<V>(b, i, n));
        match op {
            BinaryOp::Add => map::<V>(count, out, |i, n| {
                let (a, b) = two(i, n);
                V::add(a, b)
            }),
            BinaryOp::Sub => map::<V>(count, out, |i, n| {
                let (a, b) = two(i, n);
                V::sub(a, b)
            }),
            BinaryOp::Mul => map::<V>(count, out, |i, n| {
                let (a, b) = two(i, n);
                V::mul(a, b)
            }),
            BinaryOp::Div => map::<V>(count, out, |i, n| {
                let (a, b) = two(i, n);
                V::div(a, b)
            }),
        }
    }
}

#[inline(always)]
pub(super) unsafe fn norm<V: Vector>(
    x: *const f32,
    weight: *const f32,
    eps: f32,
    group: usize,
    out: *mut f32,
) {
    // SAFETY: the caller's duty.
    unsafe {
        let mut squares = V::splat(0.0);
        let mut i = 0;
        while i < group {
            let n = (group - i).min(LANES);
            let v = take::<V>(x, i, n);
            squares = V::fma(v, v, squares);
            i += LANES;
        }
        let by = V::splat(1.0 / (V::sum(squares) / group as f32 + eps).sqrt());
        map::<V>(group, out, |i, n| {
            V::mul(V::mul(take::<V>(x, i, n), by), take::<V>(weight, i, n))
        });
    }
}

/// The shares of exponentials, in three passes over lanes that stay in the first-level cache: the maximum, what each lane's exponential
/// is relative to it, and the quotients.
#[inline(always)]
pub(super) unsafe fn softmax<V: Vector>(x: *const f32, group: usize, out: *mut f32) {
    // SAFETY: the caller's duty.
    unsafe {
        let whole = group / LANES * LANES;
        let mut highest = V::splat(*x);
        for i in (0..whole).step_by(LANES) {
            highest = V::max(highest, V::load(x.add(i)));
        }
        let mut most = V::largest(highest);
        // Lanes behind the end would count as zeros.
        for i in whole..group {
            most = most.max(*x.add(i));
        }
        let by = exponentials::<V>(x, V::splat(most), group, out);
        let mut i = 0;
        while i < group {
            let n = (group - i).min(LANES);
            put::<V>(out, i, n, V::mul(take::<V>(out, i, n), by));
            i += LANES;
        }
    }
}

/// Stores `e^(x - most)` and returns one over their sum, in all lanes.
#[inline(always)]
unsafe fn exponentials<V: Vector>(x: *const f32, most: V::F, group: usize, out: *mut f32) -> V::F {
    let mut i = 0;
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = V::splat(0.0);
        while i < group {
            let n = (group - i).min(LANES);
            put::<V>(out, i, n, math::exp::<V>(V::sub(take::<V>(x, i, n), most)));
            // Read again: behind the end there are zeros then.
            sums = V::add(sums, take::<V>(out, i, n));
            i += LANES;
        }
        V::splat(1.0 / V::sum(sums))
    }
}

#[inline(always)]
pub(super) unsafe fn rotate<V: Vector>(
    x: *const f32,
    out: *mut f32,
    cos: *const f32,
    dims: usize,
    layout: RopeLayout,
) {
    let half = dims / 2;
    // SAFETY: the caller's duty.
    unsafe {
        let sin = cos.add(half);
        match layout {
            RopeLayout::Half => {
                let mut i = 0;
                while i < half {
                    let n = (half - i).min(LANES);
                    let (c, s) = (take::<V>(cos, i, n), take::<V>(sin, i, n));
                    let (a, b) = (take::<V>(x, i, n), take::<V>(x, half + i, n));
                    put::<V>(out, i, n, V::fnma(b, s, V::mul(a, c)));
                    put::<V>(out, half + i, n, V::fma(a, s, V::mul(b, c)));
                    i += LANES;
                }
            }
            RopeLayout::Interleaved => {
                for i in 0..half {
                    let (c, s) = (*cos.add(i), *sin.add(i));
                    let (a, b) = (*x.add(2 * i), *x.add(2 * i + 1));
                    *out.add(2 * i) = a * c - b * s;
                    *out.add(2 * i + 1) = b * c + a * s;
                }
            }
        }
    }
}
