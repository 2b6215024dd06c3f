//! Integer tiles of sixteen rows on AMX's tile registers (Intel SDM, TDPBSUD): sixteen rows of inputs times sixteen
//! outputs of a panel, whose quads lie as the instruction wants them.
//!
//! A *piece* is what shares a scale: a group of 32 inputs or half of one. While one piece's products are scaled and added,
//! the tile registers multiply the next. Sums of integers are exact and what follows is in the order of
//! [`group_sums`](super::group_sums), so rows are bit-equal to those of narrower tiles.

use super::forms::Form;
use super::group_sums::{min_of, scale_of, supers};
use super::kind::Decoding;
use super::panel::GROUP;
use super::prefetch::Ahead;
use super::quads::Codes;
use super::quantize::InputRows;
use super::simd::Vector;
use super::simd::avx512::Avx512 as V;
use super::tile::{Panel, TILE_ROWS as ROWS};
use std::arch::asm;
use std::arch::x86_64::*;

/// Bytes of a quad of sixteen outputs, a row of a tile register.
const QUAD: usize = 64;

/// What `ldtilecfg` loads: palette 1, then bytes of a row and rows of each register. Sums are 0 and 1; weights and inputs
/// of groups 2 and 3, of halves 4 and 5.
#[repr(C, align(64))]
struct Config {
    palette: [u8; 16],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const CONFIG: Config = {
    let mut config = Config {
        palette: [0; 16],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    config.palette[0] = 1;
    let registers = [(16, 64), (16, 64), (8, 64), (16, 32), (4, 64), (16, 16)];
    let mut i = 0;
    while i < registers.len() {
        config.rows[i] = registers[i].0;
        config.row_bytes[i] = registers[i].1;
        i += 1;
    }
    config
};

/// Sets the registers up for this thread until it is dropped.
pub(super) struct Tiles(());

impl Tiles {
    /// # Safety
    /// The process may use AMX.
    #[inline(always)]
    pub(super) unsafe fn set_up() -> Self {
        // SAFETY: the configuration is valid and 64 bytes long.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly)) };
        Self(())
    }
}

impl Drop for Tiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: there is a configuration, and no compiled code uses tile registers.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Codes and products of two pieces.
#[repr(C, align(64))]
struct Pieces {
    codes: [[u8; 8 * QUAD]; 2],
    dots: [[i32; ROWS * 16]; 2],
}

/// Multiplies weights at `$w` with inputs at `$x` into the sums `$sums`.
macro_rules! multiply {
    ($sums:tt, $weights:tt, $inputs:tt, $w:expr, $x:expr, $stride:expr) => {
        asm!(
            concat!("tilezero ", $sums),
            concat!("tileloadd ", $weights, ", [{w} + {quad}*1]"),
            concat!("tileloadd ", $inputs, ", [{x} + {stride}*1]"),
            concat!("tdpbsud ", $sums, ", ", $inputs, ", ", $weights),
            w = in(reg) $w,
            quad = in(reg) QUAD,
            x = in(reg) $x,
            stride = in(reg) $stride,
            options(nostack, readonly),
        )
    };
}

/// Whether codes lie in the panel as bytes that stand for themselves.
const fn are_bytes<F: Form>() -> bool {
    matches!(F::DECODING, Decoding::Plain | Decoding::Wide) && F::Codes::BYTES == 8 * QUAD
}

/// `$body` for each row `$m` of a tile.
macro_rules! each_row {
    ($m:ident => $body:block) => {
        each_row!($m $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($m:ident $body:block $($row:literal)*) => {
        $({
            const $m: usize = $row;
            $body
        })*
    };
}

/// Begins the products of piece `i` of the rows from `first` on, in the sums of its parity. Its codes were
/// [decoded](decode).
#[inline(always)]
unsafe fn begin<F: Form>(p: &Panel, x: &InputRows, first: usize, i: usize, pieces: &Pieces) {
    // SAFETY: the caller's duty.
    unsafe {
        let (group, half) = place::<F>(i);
        let codes = match are_bytes::<F>() {
            true => p.codes.add(group * F::Codes::BYTES + half * 4 * QUAD),
            false => pieces.codes[i % 2].as_ptr(),
        };
        let inputs = x
            .codes
            .add(first * x.code_stride + group * GROUP + half * 16);
        match (F::SCALING.halves(), i % 2) {
            (false, 0) => multiply!("tmm0", "tmm2", "tmm3", codes, inputs, x.code_stride),
            (false, _) => multiply!("tmm1", "tmm2", "tmm3", codes, inputs, x.code_stride),
            (true, 0) => multiply!("tmm0", "tmm4", "tmm5", codes, inputs, x.code_stride),
            (true, _) => multiply!("tmm1", "tmm4", "tmm5", codes, inputs, x.code_stride),
        }
    }
}

/// Group of a piece, and which half of it.
#[inline(always)]
fn place<F: Form>(i: usize) -> (usize, usize) {
    match F::SCALING.halves() {
        true => (i / 2, i % 2),
        false => (i, 0),
    }
}

/// The codes of piece `i` as bytes, a piece before they are wanted: stores take a while until tiles can be loaded from
/// them.
#[inline(always)]
unsafe fn decode<F: Form>(p: &Panel, i: usize, pieces: &mut Pieces) {
    if are_bytes::<F>() {
        return;
    }
    let (group, half) = place::<F>(i);
    let to = pieces.codes[i % 2].as_mut_ptr();
    // SAFETY: the caller's duty.
    unsafe {
        let at = p.codes.add(group * F::Codes::BYTES);
        let table = V::table(p.kind.table.as_ptr());
        let put = |pair: usize, (mut a, mut b): (__m512i, __m512i)| {
            if matches!(F::DECODING, Decoding::Lookup | Decoding::LookupWide) {
                (a, b) = (V::lookup(table, a), V::lookup(table, b));
            }
            _mm512_store_si512(to.add(2 * pair * QUAD).cast(), a);
            _mm512_store_si512(to.add((2 * pair + 1) * QUAD).cast(), b);
        };
        if half == 0 {
            put(0, F::Codes::quads::<V, 0>(at));
            put(1, F::Codes::quads::<V, 1>(at));
        }
        if !F::SCALING.halves() {
            put(2, F::Codes::quads::<V, 2>(at));
            put(3, F::Codes::quads::<V, 3>(at));
        } else if half == 1 {
            put(0, F::Codes::quads::<V, 2>(at));
            put(1, F::Codes::quads::<V, 3>(at));
        }
    }
}

/// Waits for the products of piece `i`.
#[inline(always)]
unsafe fn end(i: usize, pieces: &mut Pieces) {
    let to = pieces.dots[i % 2].as_mut_ptr();
    // SAFETY: the piece's products take the whole array.
    unsafe {
        match i % 2 {
            0 => asm!("tilestored [{} + {}*1], tmm0", in(reg) to, in(reg) QUAD, options(nostack)),
            _ => asm!("tilestored [{} + {}*1], tmm1", in(reg) to, in(reg) QUAD, options(nostack)),
        }
    }
}

/// `out[r * stride ..][..16]` for sixteen rows from `first` on.
///
/// # Safety
/// The registers are [set up](Tiles), the panel and the input rows, which lie one after the other, are whole; `out` holds
/// the results.
#[inline(always)]
pub(super) unsafe fn tile<F: Form>(
    p: Panel,
    x: InputRows,
    first: usize,
    out: *mut f32,
    stride: usize,
    ahead: &mut Ahead,
) {
    let mut pieces = Pieces {
        codes: [[0; 8 * QUAD]; 2],
        dots: [[0; ROWS * 16]; 2],
    };
    let per_group = if F::SCALING.halves() { 2 } else { 1 };
    let last = p.groups * per_group - 1;
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = [V::splat(0.0); ROWS];
        let mut block = p.supers;
        decode::<F>(&p, 0, &mut pieces);
        begin::<F>(&p, &x, first, 0, &pieces);
        decode::<F>(&p, 1.min(last), &mut pieces);
        for group in (0..p.groups).step_by(p.stretch) {
            ahead.step();
            let supers = supers::<V, F>(block, p.kind.factor);
            block = block.wrapping_add(F::SCALING.block_bytes());
            for g in group..(group + p.stretch).min(p.groups) {
                p.ask(g);
                for half in 0..per_group {
                    let i = g * per_group + half;
                    end(i, &mut pieces);
                    if i < last {
                        begin::<F>(&p, &x, first, i + 1, &pieces);
                        decode::<F>(&p, (i + 2).min(last), &mut pieces);
                    }
                    let scales = p.scales.add(g * F::SCALING.group_bytes());
                    let scales = scales.add(half * F::SCALING.group_bytes() / 2);
                    let dots = &pieces.dots[i % 2];
                    add::<F>(&mut sums, dots, scales, supers, (&p, &x, first), (g, i));
                }
            }
        }
        for (m, sum) in sums.iter().enumerate() {
            V::store(out.add(m * stride), *sum);
        }
    }
}

/// Scales and adds the products of piece `i` of group `g`.
#[inline(always)]
unsafe fn add<F: Form>(
    sums: &mut [__m512; ROWS],
    dots: &[i32; ROWS * 16],
    scales: *const u8,
    (d, dmin): (__m512, __m512),
    (p, x, first): (&Panel, &InputRows, usize),
    (g, i): (usize, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let scale = scale_of::<V, F>(scales, d);
        let min = match F::SCALING.has_min() {
            true => min_of::<V, F>(scales, dmin),
            false => V::splat(0.0),
        };
        let dots = dots.as_ptr();
        let (row_scales, between) = (x.scales.add(first * x.groups + g), x.groups);
        let starts = x.start_row(first, p.start).add(i);
        let stride = x.start_row(1, 0).offset_from(x.start_row(0, 0)) as usize;
        // Written out, so that all sums stay in registers.
        each_row!(M => {
            let mut dot = _mm512_load_si512(dots.add(M * 16).cast());
            if !F::SCALING.has_min() {
                dot = _mm512_add_epi32(dot, V::splat_i(*starts.add(M * stride)));
            }
            let by = V::mul(scale, V::splat(*row_scales.add(M * between)));
            sums[M] = V::fma(V::to_f(dot), by, sums[M]);
            if F::SCALING.has_min() {
                let inputs = V::splat(*starts.cast::<f32>().add(M * stride));
                sums[M] = V::fnma(min, inputs, sums[M]);
            }
        });
    }
}
