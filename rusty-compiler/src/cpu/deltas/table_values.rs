//! How 32 values of an adapter's table are read into registers, by the table's format.

use crate::cpu::float::{InBf16, InF16, InF32, Stored};
use crate::cpu::simd::{LANES, Vector};
use crate::delta_table::PANEL;

/// Bytes of a block's scale.
const SCALE_BYTES: usize = 2;

/// A row of 32 stored values, read as two vectors and a factor on both.
pub(super) trait Panel {
    const BYTES: usize;
    unsafe fn load<V: Vector>(p: *const u8) -> (V::F, V::F);
    /// The factor.
    unsafe fn scale<V: Vector>(p: *const u8) -> f32;
}

macro_rules! float_panel {
    ($kind:ty) => {
        impl Panel for $kind {
            const BYTES: usize = PANEL * <$kind as Stored>::BYTES;
            #[inline(always)]
            unsafe fn load<V: Vector>(p: *const u8) -> (V::F, V::F) {
                // SAFETY: the caller's duty.
                unsafe {
                    let high = p.add(LANES * <$kind as Stored>::BYTES);
                    (
                        <$kind as Stored>::load::<V>(p),
                        <$kind as Stored>::load::<V>(high),
                    )
                }
            }
            #[inline(always)]
            unsafe fn scale<V: Vector>(_: *const u8) -> f32 {
                1.0
            }
        }
    };
}
float_panel!(InF32);
float_panel!(InF16);
float_panel!(InBf16);

pub(super) struct InQ4;

impl Panel for InQ4 {
    const BYTES: usize = SCALE_BYTES + PANEL / 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> (V::F, V::F) {
        // SAFETY: the caller's duty.
        unsafe {
            let pairs: [u8; LANES] = p.add(SCALE_BYTES).cast::<[u8; LANES]>().read();
            let half = |codes: [u8; LANES]| V::sub(V::load_u8(codes.as_ptr()), V::splat(8.0));
            (half(pairs.map(|c| c & 15)), half(pairs.map(|c| c >> 4)))
        }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(p: *const u8) -> f32 {
        // SAFETY: the caller's duty.
        unsafe { V::half(p.cast()) }
    }
}
