//! One vector trait, sixteen lanes wide on every instruction set, and one thin file per set.
//!
//! Kernels are written once over [`Vector`] as `#[inline(always)]` functions. The [`per_isa!`] macro makes
//! of such a function an entry that is compiled once per instruction set with its features enabled and
//! picks one at run time by [`Level`]. A `Level` exists only for what the machine can run, which is what
//! makes those calls sound.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod byte_products;
pub(super) mod math;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;
pub(super) mod small_floats;
pub(super) mod word_products;

use super::forms::Form;
use super::prefetch::Ahead;
use super::quantize::InputRows;
use super::tile::Panel;
use byte_products::ByteProducts;
use rusty_backend::{CpuDevice, Isa};

/// Lanes of a [`Vector`].
pub(super) const LANES: usize = 16;

/// An instruction set that this machine was found to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with tiles of sixteen rows on AMX.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// AVX2, FMA, F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same with AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// Arm NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The same with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// Portable code.
    Scalar,
}

impl Level {
    /// The kernels for `isa`; where this machine lacks only its products of bytes those without them, portable code where it
    /// lacks more.
    pub(super) fn for_isa(isa: Isa) -> Self {
        let runnable = CpuDevice::runnable();
        let has = |f: fn(&Isa) -> bool| f(&isa) && runnable.iter().any(f);
        #[cfg(target_arch = "x86_64")]
        {
            if has(|i| matches!(i, Isa::Avx512 { amx: true, .. })) {
                return Level::Amx;
            }
            if has(|i| matches!(i, Isa::Avx512 { vnni: true, .. })) {
                return Level::Avx512;
            }
            if has(|i| *i == Isa::Avx2 { vnni: true }) {
                return Level::AvxVnni;
            }
            // AVX-512 machines without VNNI run the AVX2 kernels, which `detect` found to be there.
            if has(|i| matches!(i, Isa::Avx512 { .. })) || has(|i| matches!(i, Isa::Avx2 { .. })) {
                return Level::Avx2;
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if has(|i| *i == Isa::Neon { dotprod: true }) {
                return Level::NeonDot;
            }
            if has(|i| matches!(i, Isa::Neon { .. })) {
                return Level::Neon;
            }
        }
        let _ = has;
        Level::Scalar
    }

    /// Whether kernels for `isa`, of which this is the level, multiply brain floats.
    pub(super) fn has_brains(self, isa: Isa) -> bool {
        let has = |isa: &Isa| matches!(isa, Isa::Avx512 { bf16: true, .. });
        let portable = self == Level::Scalar;
        has(&isa) && (portable || CpuDevice::runnable().iter().any(has))
    }

    /// Panels that a row alone is multiplied with [side by side](super::stream); one where it takes them in turn.
    pub(super) fn row_panels(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => avx512::Avx512::ROW_PANELS,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::Avx2::<false>::ROW_PANELS,
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => avx2::Avx2::<true>::ROW_PANELS,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => neon::Neon::<false>::ROW_PANELS,
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => neon::Neon::<true>::ROW_PANELS,
            Level::Scalar => scalar::Scalar::ROW_PANELS,
        }
    }

    /// Whether tiles of sixteen rows may be made on tile registers.
    pub(super) fn has_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Level::Amx;
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }
}

/// Sixteen lanes of single precision and integers, and sixty-four bytes.
///
/// # Safety
/// Every function needs the instruction set of its implementation; pointers must be valid for the lanes
/// that are read or written and need no alignment.
pub(super) trait Vector: Copy + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixty-four bytes.
    type B: Copy;

    /// Rows and columns of a float tile that fit the register file.
    const FLOAT_TILE: (usize, usize);
    /// Sums of an attention tile, of up to four query rows, that fit the register file.
    const ATTN_SUMS: usize;

    /// Multiplies whole tiles of sixteen rows on tile registers, as [`tile`](super::tile) does; the rows done.
    ///
    /// # Safety
    /// As there, and the machine has them.
    unsafe fn tiles<F: Form>(
        _: Panel,
        _: InputRows,
        _: (usize, usize),
        _: (*mut f32, usize),
        _: &mut Ahead,
    ) -> usize {
        0
    }

    unsafe fn splat(v: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    /// The first `n <= 16` lanes; the others are zero.
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    /// The first `n < 16` lanes.
    unsafe fn store_part(p: *mut f32, v: Self::F, n: usize);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`.
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    /// Magnitude of `a`, sign of `b`.
    unsafe fn copysign(a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `2^n` for whole `n` in -126..=127.
    unsafe fn exp2i(n: Self::F) -> Self::F;
    /// `v` where `x >= limit`, else 0.
    unsafe fn zero_below(x: Self::F, limit: Self::F, v: Self::F) -> Self::F;
    unsafe fn sum(a: Self::F) -> f32;
    unsafe fn largest(a: Self::F) -> f32;

    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// One half-precision value.
    unsafe fn half(p: *const u16) -> f32;
    unsafe fn load_u8(p: *const u8) -> Self::F;
    unsafe fn load_i8(p: *const i8) -> Self::F;
    /// Nearest half precision, ties to even.
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    /// Stores lanes that are whole numbers in -127..=127 as bytes and returns them as integers.
    unsafe fn store_i8(p: *mut i8, v: Self::F) -> Self::I;

    unsafe fn splat_i(v: i32) -> Self::I;
    unsafe fn sum_i(v: Self::I) -> i32;
    unsafe fn to_f(v: Self::I) -> Self::F;

    unsafe fn load_bytes(p: *const u8) -> Self::B;
    /// `width` bits of each byte from bit `from` on, moved to bit `to`; all other bits are zero. The numbers are
    /// constants where it is used, so that shifts are immediate.
    unsafe fn bits(b: Self::B, from: i32, to: i32, width: u32) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// Sixteen bytes for [`Vector::lookup`].
    unsafe fn table(p: *const u8) -> Self::B;
    /// The table's byte for each code below 16.
    unsafe fn lookup(table: Self::B, codes: Self::B) -> Self::B;

    /// Four half-precision values, each in four neighbouring lanes.
    unsafe fn half_quads(p: *const u8) -> Self::F;
    /// Sixteen bytes, four times.
    unsafe fn repeat_bytes(p: *const u8) -> Self::B;
}

/// `vectors!(V, N, |i| at(i))` are `N` vectors, `at(0)` and on. What is called in a closure, as `from_fn` takes it, may be
/// compiled without the instruction set, each instruction as a call.
macro_rules! vectors {
    ($set:ident, $count:expr, |$i:ident| $value:expr) => {{
        let mut vectors = [$set::splat(0.0); $count];
        for ($i, vector) in vectors.iter_mut().enumerate() {
            *vector = $value;
        }
        vectors
    }};
}
pub(super) use vectors;

/// `fn entry(args) = generic` makes `unsafe fn entry(level, args)`, which calls `generic::<V>` compiled for
/// the instruction set of `level`; `fn entry<T: Bound>(args) = generic` calls `generic::<V, T>`. `= products generic` tells
/// apart sets that differ only in how they [multiply bytes](byte_products::ByteProducts) and words, which every function over
/// [`ByteProducts`](byte_products::ByteProducts) must be: what such sets start their sums from differs, too.
macro_rules! per_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$kind:ident: $bound:path>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = products $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name $(<$kind: $bound>)? (level: $crate::cpu::simd::Level, $($arg: $ty),*) $(-> $ret)? {
            use $crate::cpu::simd::{Level, entry_for};
            entry_for!(avx512 = $body, [$($kind: $bound)?], ($($arg: $ty),*), [$($ret)?]);
            entry_for!(avx_vnni = $body, [$($kind: $bound)?], ($($arg: $ty),*), [$($ret)?]);
            entry_for!(avx2 = $body, [$($kind: $bound)?], ($($arg: $ty),*), [$($ret)?]);
            entry_for!(neon_dot = $body, [$($kind: $bound)?], ($($arg: $ty),*), [$($ret)?]);
            entry_for!(neon = $body, [$($kind: $bound)?], ($($arg: $ty),*), [$($ret)?]);
            // SAFETY: a level exists only for an instruction set that this machine runs; the rest is the
            // caller's duty.
            unsafe {
                match level {
                    #[cfg(target_arch = "x86_64")]
                    Level::Amx | Level::Avx512 => avx512 $(::<$kind>)? ($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Level::AvxVnni => avx_vnni $(::<$kind>)? ($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => avx2 $(::<$kind>)? ($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Level::NeonDot => neon_dot $(::<$kind>)? ($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Level::Neon => neon $(::<$kind>)? ($($arg),*),
                    Level::Scalar => $body::<$crate::cpu::simd::scalar::Scalar $(, $kind)?>($($arg),*),
                }
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$kind:ident: $bound:path>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name $(<$kind: $bound>)? (level: $crate::cpu::simd::Level, $($arg: $ty),*) $(-> $ret)? {
            use $crate::cpu::simd::{Level, entry_for};
            entry_for!(avx512 = $body, [$($kind: $bound)?], ($($arg: $ty),*), [$($ret)?]);
            entry_for!(avx2 = $body, [$($kind: $bound)?], ($($arg: $ty),*), [$($ret)?]);
            entry_for!(neon = $body, [$($kind: $bound)?], ($($arg: $ty),*), [$($ret)?]);
            // SAFETY: as above.
            unsafe {
                match level {
                    #[cfg(target_arch = "x86_64")]
                    Level::Amx | Level::Avx512 => avx512 $(::<$kind>)? ($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Level::AvxVnni | Level::Avx2 => avx2 $(::<$kind>)? ($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Level::NeonDot | Level::Neon => neon $(::<$kind>)? ($($arg),*),
                    Level::Scalar => $body::<$crate::cpu::simd::scalar::Scalar $(, $kind)?>($($arg),*),
                }
            }
        }
    };
}
pub(super) use per_isa;

/// A body compiled for an instruction set, by the name of the function, as [`per_isa!`] wants it.
macro_rules! entry_for {
    (avx512 = $($rest:tt)*) => {
        $crate::cpu::simd::entry_for! {
            @ "x86_64", "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
            $crate::cpu::simd::avx512::Avx512, avx512 = $($rest)*
        }
    };
    (avx_vnni = $($rest:tt)*) => {
        $crate::cpu::simd::entry_for! {
            @ "x86_64", "avxvnni,avx2,fma,f16c", $crate::cpu::simd::avx2::Avx2<true>, avx_vnni = $($rest)*
        }
    };
    (avx2 = $($rest:tt)*) => {
        $crate::cpu::simd::entry_for! {
            @ "x86_64", "avx2,fma,f16c", $crate::cpu::simd::avx2::Avx2<false>, avx2 = $($rest)*
        }
    };
    (neon_dot = $($rest:tt)*) => {
        $crate::cpu::simd::entry_for! {
            @ "aarch64", "neon,dotprod", $crate::cpu::simd::neon::Neon<true>, neon_dot = $($rest)*
        }
    };
    (neon = $($rest:tt)*) => {
        $crate::cpu::simd::entry_for! {
            @ "aarch64", "neon", $crate::cpu::simd::neon::Neon<false>, neon = $($rest)*
        }
    };
    (
        @ $arch:literal, $features:literal, $set:ty, $entry:ident = $body:ident,
        [$($kind:ident: $bound:path)?], ($($arg:ident: $ty:ty),*), [$($ret:ty)?]
    ) => {
        #[cfg(target_arch = $arch)]
        #[target_feature(enable = $features)]
        unsafe fn $entry $(<$kind: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the features are enabled here; the rest is the caller's duty.
            unsafe { $body::<$set $(, $kind)?>($($arg),*) }
        }
    };
}
pub(super) use entry_for;
