//! Integer tiles of sixteen rows on AMX's tile registers (Intel SDM, TDPBSSD): sixteen rows of inputs times sixteen
//! outputs of a panel, whose quads lie as the instruction wants them.
//!
//! A *piece* is what shares a scale: a group of 32 inputs or half of one. Codes become signed bytes a chunk of groups at a
//! time, once for all rows: tiles can be loaded from what is stored only when it has reached the cache, and without a zero
//! point nothing is added to a product. While a piece's products are scaled and added, the tile registers multiply the next
//! ones. Sums of integers are exact and what follows is in the order of [`group_sums`](super::group_sums), so rows are
//! bit-equal to those of narrower tiles.

use super::amx_registers::{Config, ROW as QUAD};
use super::block_scales::{BlockScales, Pair};
use super::forms::Form;
use super::group_sums::{min_of, scale_of};
use super::kind::Decoding;
use super::panel::{GROUP, HALF};
use super::prefetch::Ahead;
use super::quads::Codes;
use super::quantize::InputRows;
use super::simd::Vector;
use super::simd::avx512::Avx512 as V;
use super::simd::word_products::WordProducts;
use super::tile::{Panel, TILE_ROWS as ROWS};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of a group's codes.
const GROUP_BYTES: usize = 8 * QUAD;
/// Groups of a chunk, whole blocks of all formats: its bytes and a tile's inputs fit the first-level cache together.
const CHUNK: usize = 32;
/// The same of a single tile, for which codes and inputs are not read again: what comes finds room, too.
const SINGLE_CHUNK: usize = 16;
/// Pieces of which products are under way.
const UNDER_WAY: usize = 3;

/// Registers for pieces of so many inputs: four of sums, two of weights, two of inputs.
const fn pieces_of(piece: usize) -> Config {
    let (sums, weights, inputs) = ((ROWS, QUAD), (piece / 4, QUAD), (ROWS, piece));
    Config::new([sums, sums, sums, sums, weights, weights, inputs, inputs])
}

static GROUPS: Config = pieces_of(GROUP);
static HALVES: Config = pieces_of(HALF);

/// Sets this thread's registers up for pieces that are groups, or halves of them.
///
/// # Safety
/// The process may use AMX.
pub(super) unsafe fn set_up(halves: bool) {
    let config = if halves { &HALVES } else { &GROUPS };
    // SAFETY: the caller's duty.
    unsafe { config.set_up() };
}

/// Codes of a chunk as signed bytes.
#[repr(C, align(64))]
struct Bytes([MaybeUninit<u8>; CHUNK * GROUP_BYTES]);

/// Products of two pieces.
#[repr(C, align(64))]
struct Dots([[MaybeUninit<i32>; ROWS * 16]; 2]);

/// As many tiles of the panel as there are rows for, each as [`tile`](super::tile) makes it; the rows done.
///
/// # Safety
/// The registers are [set up](set_up) for the panel's form; the panel and the input rows, which lie one after the other,
/// are whole; `out` holds the results.
#[inline(always)]
pub(super) unsafe fn tiles<F: Form>(
    panel: Panel,
    x: InputRows,
    (first, rows): (usize, usize),
    (out, stride): (*mut f32, usize),
    ahead: &mut Ahead,
) -> usize {
    let passes = rows / ROWS;
    let mut bytes = Bytes([MaybeUninit::uninit(); CHUNK * GROUP_BYTES]);
    let groups = if passes > 1 { CHUNK } else { SINGLE_CHUNK };
    for from in (0..panel.groups).step_by(groups) {
        let chunk = from..(from + groups).min(panel.groups);
        // SAFETY: the caller's duty; each tile covers rows below `rows`.
        unsafe {
            decode::<F>(&panel, chunk.clone(), &mut bytes);
            for i in 0..passes {
                let (panel, r) = (panel.pass(i, passes), i * ROWS);
                let out = (out.add(r * stride), stride);
                tile::<F>(panel, &bytes, chunk.clone(), (x, first + r), out, ahead);
            }
        }
    }
    passes * ROWS
}

/// Makes a chunk's codes bytes.
#[inline(always)]
unsafe fn decode<F: Form>(p: &Panel, chunk: Range<usize>, bytes: &mut Bytes) {
    // SAFETY: the caller's duty; a chunk's bytes fit.
    unsafe {
        let table = V::table(p.kind.table.as_ptr());
        let zero = _mm512_set1_epi8(p.kind.zero as i8);
        let mut at = p.block::<F>(chunk.start);
        for i in 0..chunk.len() {
            // Chunks begin with a block.
            if F::SCALING.has_blocks() && i.is_multiple_of(p.stretch) {
                at = at.add(F::SCALING.block_bytes());
            }
            let to = bytes.0.as_mut_ptr().add(i * GROUP_BYTES).cast();
            store_quads::<F>(to, F::Codes::quads::<V, 0>(at), table, zero);
            let to = to.add(2);
            store_quads::<F>(to, F::Codes::quads::<V, 1>(at), table, zero);
            let to = to.add(2);
            store_quads::<F>(to, F::Codes::quads::<V, 2>(at), table, zero);
            let to = to.add(2);
            store_quads::<F>(to, F::Codes::quads::<V, 3>(at), table, zero);
            at = at.add(F::BYTES);
        }
    }
}

/// Stores what two quads of codes stand for.
#[inline(always)]
unsafe fn store_quads<F: Form>(
    to: *mut __m512i,
    (mut a, mut b): (__m512i, __m512i),
    table: __m512i,
    zero: __m512i,
) {
    // SAFETY: the caller's duty.
    unsafe {
        if matches!(F::DECODING, Decoding::Lookup | Decoding::LookupWide) {
            (a, b) = (V::lookup(table, a), V::lookup(table, b));
        }
        if !F::SCALING.has_min() {
            (a, b) = (_mm512_sub_epi8(a, zero), _mm512_sub_epi8(b, zero));
        }
        _mm512_store_si512(to, a);
        _mm512_store_si512(to.add(1), b);
    }
}

/// Multiplies weights at `$w` with inputs at `$x` into the sums `$sums`.
macro_rules! multiply {
    ($sums:literal, $weights:literal, $inputs:literal, $w:expr, $x:expr, $stride:expr) => {
        asm!(
            concat!("tilezero ", $sums),
            concat!("tileloadd ", $weights, ", [{w} + {quad}*1]"),
            concat!("tileloadd ", $inputs, ", [{x} + {stride}*1]"),
            concat!("tdpbssd ", $sums, ", ", $inputs, ", ", $weights),
            w = in(reg) $w,
            quad = in(reg) QUAD,
            x = in(reg) $x,
            stride = in(reg) $stride,
            options(nostack, readonly),
        )
    };
}

/// Begins the products of a chunk's piece `i`, whose bytes are at `w` and whose inputs at `x`.
#[inline(always)]
unsafe fn begin(i: usize, w: *const MaybeUninit<u8>, x: *const i8, stride: usize) {
    // SAFETY: the caller's duty.
    unsafe {
        match i % (UNDER_WAY + 1) {
            0 => multiply!("tmm0", "tmm4", "tmm6", w, x, stride),
            1 => multiply!("tmm1", "tmm5", "tmm7", w, x, stride),
            2 => multiply!("tmm2", "tmm4", "tmm6", w, x, stride),
            _ => multiply!("tmm3", "tmm5", "tmm7", w, x, stride),
        }
    }
}

/// Stores the sums `$sums`.
macro_rules! store {
    ($sums:literal, $to:expr) => {
        asm!(
            concat!("tilestored [{to} + {quad}*1], ", $sums),
            to = in(reg) $to,
            quad = in(reg) QUAD,
            options(nostack),
        )
    };
}

/// Waits for the products of piece `i`.
#[inline(always)]
unsafe fn end(i: usize, dots: &mut Dots) {
    let to = dots.0[i % 2].as_mut_ptr();
    // SAFETY: a piece's products take the whole array.
    unsafe {
        match i % (UNDER_WAY + 1) {
            0 => store!("tmm0", to),
            1 => store!("tmm1", to),
            2 => store!("tmm2", to),
            _ => store!("tmm3", to),
        }
    }
}

/// `$body` for each row `$m` of a tile, written out, so that all sums stay in registers.
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

/// Adds a chunk's products of sixteen rows from `first` on to `out[r * stride ..][..16]`, where the first chunk's begin at
/// zero.
///
/// # Safety
/// As [`tiles`]; the chunk's bytes are [decoded](decode).
#[inline(always)]
unsafe fn tile<F: Form>(
    p: Panel,
    bytes: &Bytes,
    chunk: Range<usize>,
    (x, first): (InputRows, usize),
    (out, stride): (*mut f32, usize),
    ahead: &mut Ahead,
) {
    const { assert!(CHUNK.is_multiple_of(SINGLE_CHUNK)) };
    debug_assert!(SINGLE_CHUNK.is_multiple_of(p.stretch));
    let mut dots = Dots([[MaybeUninit::uninit(); ROWS * 16]; 2]);
    let per_group = F::SCALING.pieces();
    let pieces = chunk.len() * per_group;
    // SAFETY: the caller's duty.
    unsafe {
        let inputs = x.codes.add(first * x.code_stride + chunk.start * GROUP);
        let begin = |i: usize| {
            let w = bytes.0.as_ptr().add(i * (GROUP_BYTES / per_group));
            begin(i, w, inputs.add(i * (GROUP / per_group)), x.code_stride);
        };
        let mut sums = [V::splat(0.0); ROWS];
        if chunk.start > 0 && !F::SCALING.has_blocks() {
            each_row!(M => { sums[M] = V::load(out.add(M * stride)); });
        }
        for i in 0..UNDER_WAY.min(pieces) {
            begin(i);
        }
        end(0, &mut dots);
        let mut at = p.block::<F>(chunk.start);
        for group in chunk.clone().step_by(p.stretch) {
            ahead.step();
            let block = at;
            at = at.add(F::SCALING.block_bytes());
            for g in group..(group + p.stretch).min(chunk.end) {
                p.ask(g);
                let scales = at.add(F::Codes::BYTES);
                at = at.add(F::BYTES);
                for half in 0..per_group {
                    let i = (g - chunk.start) * per_group + half;
                    if i + UNDER_WAY < pieces {
                        begin(i + UNDER_WAY);
                    }
                    if i + 1 < pieces {
                        end(i + 1, &mut dots);
                    }
                    let dots = dots.0[i % 2].as_ptr().cast();
                    let scales = scales.add(half * F::SCALING.group_bytes() / 2);
                    add::<F>(&mut sums, dots, scales, (p.start, &x, first), (g, half));
                }
            }
            if F::SCALING.has_blocks() {
                let inputs = (p.start, &x, first);
                add_block::<F>((out, stride), &mut sums, (block, &p), inputs, group);
            }
        }
        if !F::SCALING.has_blocks() {
            each_row!(M => { V::store(out.add(M * stride), sums[M]); });
        }
    }
}

/// Scales and adds the products of a piece, half `half` of group `g` or all of it, whose scales are given; where these are
/// steps, by the steps.
#[inline(always)]
unsafe fn add<F: Form>(
    sums: &mut [__m512; ROWS],
    dots: *const i32,
    scales: *const u8,
    (start, x, first): (usize, &InputRows, usize),
    (g, half): (usize, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let scale = scale_of::<V, F>(scales);
        let (row_scales, between) = (x.scales.add(first * x.groups + g), x.groups);
        each_row!(M => {
            let dot = V::to_f(_mm512_load_si512(dots.add(M * 16).cast()));
            let by = match F::SCALING.has_blocks() {
                true => scale,
                false => V::mul(scale, V::splat(*row_scales.add(M * between))),
            };
            sums[M] = V::fma(dot, by, sums[M]);
        });
        if F::SCALING.has_min() && !F::SCALING.has_blocks() {
            let min = min_of::<V>(scales);
            let piece = if F::SCALING.halves() { 2 * g + half } else { g };
            let inputs = x.start_row(first, start).cast::<f32>().add(piece);
            let stride = x.start_row(1, 0).offset_from(x.start_row(0, 0)) as usize;
            each_row!(M => {
                sums[M] = V::fnma(min, V::splat(*inputs.add(M * stride)), sums[M]);
            });
        }
    }
}

/// Adds what the steps of a block, which begins with group `g`, made of its products to `out`, where the first block's
/// begin at zero, and clears it.
#[inline(always)]
unsafe fn add_block<F: Form>(
    (out, stride): (*mut f32, usize),
    steps: &mut [__m512; ROWS],
    (block, p): (*const u8, &Panel),
    (start, x, first): (usize, &InputRows, usize),
    g: usize,
) {
    // SAFETY: the caller's duty.
    unsafe {
        let scales = BlockScales::<V>::new::<F>(block, p.kind.factor);
        let pairs = || Pair::all::<F>(g, p.stretch);
        // In memory, for all rows: registers are full of their steps.
        let mut words = [V::splat_i(0); SINGLE_CHUNK];
        for (words, pair) in words.iter_mut().zip(pairs()) {
            *words = pair.steps::<V, F>(block);
        }
        each_row!(M => {
            let inputs = x.start_row(first + M, start).cast_const();
            let mut minima = V::splat_i(0);
            for (words, pair) in words.iter().zip(pairs()) {
                minima = V::dot_words(minima, *words, pair.code_sums(inputs));
            }
            let (row, out) = (*x.scales.add((first + M) * x.groups + g), out.add(M * stride));
            let sum = if g > 0 { V::load(out) } else { V::splat(0.0) };
            V::store(out, scales.add::<F>(sum, steps[M], minima, row));
            steps[M] = V::splat(0.0);
        });
    }
}
