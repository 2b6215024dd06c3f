//! Codes of a group, read from their planes: two quads at a time, as bytes.

use super::kind::Width;
use super::simd::Vector;

/// Codes of a group by quads.
pub(super) trait Codes {
    const BYTES: usize;
    /// Quads `2 J` and `2 J + 1` of the group at `p`.
    unsafe fn quads<V: Vector, const J: usize>(p: *const u8) -> (V::B, V::B);
}

pub(super) struct Two;
pub(super) struct Three;
pub(super) struct Four;
pub(super) struct Five;
pub(super) struct Six;
pub(super) struct Eight;

/// Of the plane of two bits at `p`, moved to bit `to`.
#[inline(always)]
unsafe fn pairs<V: Vector, const J: usize>(p: *const u8, to: i32) -> (V::B, V::B) {
    // SAFETY: the caller's duty.
    unsafe {
        let bytes = V::load_bytes(p.add(J / 2 * 64));
        let from = (J % 2 * 4) as i32;
        (V::bits(bytes, from, to, 2), V::bits(bytes, from + 2, to, 2))
    }
}

/// Of the plane of single bits at `p`, moved to bit `to`.
#[inline(always)]
unsafe fn bits<V: Vector, const J: usize>(p: *const u8, to: i32) -> (V::B, V::B) {
    // SAFETY: the caller's duty.
    unsafe {
        let bytes = V::load_bytes(p);
        let from = (2 * J) as i32;
        (V::bits(bytes, from, to, 1), V::bits(bytes, from + 1, to, 1))
    }
}

#[inline(always)]
unsafe fn or<V: Vector>(a: (V::B, V::B), b: (V::B, V::B)) -> (V::B, V::B) {
    // SAFETY: the caller's duty.
    unsafe { (V::or(a.0, b.0), V::or(a.1, b.1)) }
}

macro_rules! codes {
    ($name:ty, $width:expr, $p:ident => $quads:expr) => {
        impl Codes for $name {
            const BYTES: usize = $width.code_bytes();
            #[inline(always)]
            unsafe fn quads<V: Vector, const J: usize>($p: *const u8) -> (V::B, V::B) {
                // SAFETY: the caller's duty.
                unsafe { $quads }
            }
        }
    };
}
codes!(Two, Width::W2, p => pairs::<V, J>(p, 0));
codes!(Three, Width::W3, p => or::<V>(pairs::<V, J>(p, 0), bits::<V, J>(p.add(128), 2)));
codes!(Four, Width::W4, p => {
    let bytes = V::load_bytes(p.add(J * 64));
    (V::bits(bytes, 0, 0, 4), V::bits(bytes, 4, 0, 4))
});
codes!(Five, Width::W5, p => or::<V>(Four::quads::<V, J>(p), bits::<V, J>(p.add(256), 4)));
codes!(Six, Width::W6, p => or::<V>(Four::quads::<V, J>(p), pairs::<V, J>(p.add(256), 4)));
codes!(Eight, Width::W8, p => {
    (V::load_bytes(p.add(J * 128)), V::load_bytes(p.add(J * 128 + 64)))
});
