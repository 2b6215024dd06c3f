//! AMX's tile registers for products of brain floats: six of sums, one for each operand.

use super::amx_registers::{Config, ROW, Shape};
use super::simd::LANES;
use super::tile::TILE_ROWS;
use std::arch::asm;

/// Registers of sums.
pub(super) const SUMS: usize = 6;
/// Bytes of a pair of values, or of a sum.
pub(super) const PAIR: usize = 4;

const fn shapes(sums: Shape, first: Shape, second: Shape) -> Config {
    Config::new([sums, sums, sums, sums, sums, sums, first, second])
}

/// Sixteen columns by one row of inputs in each register of sums.
pub(super) static FEW: Config = shapes((LANES, PAIR), (LANES, ROW), (LANES, PAIR));
/// Sixteen rows of inputs by sixteen columns.
pub(super) static MANY: Config = shapes((TILE_ROWS, ROW), (TILE_ROWS, ROW), (LANES, ROW));

/// Sets all sums to zero.
///
/// # Safety
/// The registers are set up.
#[inline(always)]
pub(super) unsafe fn zero() {
    // SAFETY: no compiled code uses tile registers.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "tilezero tmm4",
            "tilezero tmm5",
            options(nostack, nomem)
        );
    }
}

/// `$do!(register, number)` for the first `$count` registers of sums.
macro_rules! each {
    ($count:expr, $do:ident) => {
        each!($count, $do, "tmm0" 0, "tmm1" 1, "tmm2" 2, "tmm3" 3, "tmm4" 4, "tmm5" 5)
    };
    ($count:expr, $do:ident, $($name:literal $i:literal),*) => {{
        $(if $count > $i {
            $do!($name, $i);
        })*
    }};
}

/// Loads the register of an operand, `$stride` bytes from one of its rows to the next.
macro_rules! load {
    ($operand:literal, $at:expr, $stride:expr) => {
        asm!(
            concat!("tileloadd ", $operand, ", [{at} + {stride}*1]"),
            at = in(reg) $at,
            stride = in(reg) $stride,
            options(nostack, readonly),
        )
    };
}

/// Adds the operands' products.
macro_rules! dot {
    ($sums:literal) => {
        asm!(
            concat!("tdpbf16ps ", $sums, ", tmm6, tmm7"),
            options(nostack, nomem)
        )
    };
}

/// Adds the products of sixteen columns' 32 values at `words`, `column` bytes apart, with those of each row of inputs.
///
/// # Safety
/// Registers are [`FEW`]; the values are there.
#[inline(always)]
pub(super) unsafe fn add_few<const M: usize>(
    words: *const u8,
    column: usize,
    inputs: [*const u8; M],
) {
    macro_rules! add {
        ($sums:literal, $i:literal) => {
            load!("tmm7", inputs[$i], PAIR);
            dot!($sums);
        };
    }
    // SAFETY: the caller's duty.
    unsafe {
        load!("tmm6", words, column);
        each!(M, add);
    }
}

/// Adds the products of sixteen rows of inputs for each of `R` registers, `stride` bytes from one row to the next, with sixteen
/// columns at `tile`, each row of which has a pair of values of every column.
///
/// # Safety
/// Registers are [`MANY`]; the values are there.
#[inline(always)]
pub(super) unsafe fn add_many<const R: usize>(tile: *const u8, inputs: *const u8, stride: usize) {
    macro_rules! add {
        ($sums:literal, $i:literal) => {
            load!("tmm6", inputs.wrapping_add($i * TILE_ROWS * stride), stride);
            dot!($sums);
        };
    }
    // SAFETY: the caller's duty.
    unsafe {
        load!("tmm7", tile, ROW);
        each!(R, add);
    }
}

/// Stores register `register` of sums, `stride` bytes from one of its rows to the next.
///
/// # Safety
/// The registers are set up, and there is room.
#[inline(always)]
pub(super) unsafe fn store(register: usize, to: *mut f32, stride: usize) {
    macro_rules! store {
        ($sums:literal, $i:literal) => {
            if register == $i {
                asm!(
                    concat!("tilestored [{to} + {stride}*1], ", $sums),
                    to = in(reg) to,
                    stride = in(reg) stride,
                    options(nostack),
                )
            }
        };
    }
    // SAFETY: the caller's duty.
    unsafe { each!(SUMS, store) }
}
