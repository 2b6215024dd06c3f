//! Products of matrices by the units of 32-wide planes together: `mma.sync.aligned.m16n8k16` of bf16 or f16 with sums in
//! single precision (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type").
//!
//! A unit holds fragments: four words of the 16 x 16 left matrix, two of the 16 x 8 right one, four sums. Of
//! unit `4 g + t`, left words are the elements `2 t` and `2 t + 1` of row `g`, of row `g + 8`, then both 8 elements further;
//! right words those of column `g`; sums `2 t` and `2 t + 1` of rows `g` and `g + 8`.
//!
//! Where the language has no such instruction the same fragments are multiplied through shared memory, so that what lies
//! around them is tested on any device. No rule chooses it there.

use super::bits::{bf16_pair, f16_pair, f16_value};
use super::env::put;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;

/// Units that hold one fragment.
pub const PLANE: u32 = 32;
/// Right fragments that the substitute multiplies at once.
const AT_ONCE: usize = 4;

/// Words of shared memory that the substitute needs for `units` units with `right` right fragments each.
pub fn exchange_words(units: u32, right: usize) -> usize {
    units as usize * (4 + 2 * right.min(AT_ONCE))
}

/// What fragments hold, and what multiplies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Halves {
    /// Half precision; else bf16.
    pub f16: bool,
    /// Whether the language has the instruction.
    pub native: bool,
}

/// The largest number in half precision.
const LARGEST_HALF: f32 = 65504.0;

/// Two values in a word, the first in the low bits; in half precision what is beyond it becomes infinite.
#[cube]
pub fn packed(low: f32, high: f32, #[comptime] halves: Halves) -> u32 {
    if comptime!(!halves.native && halves.f16) {
        f16_pair(low, high)
    } else if comptime!(!halves.native) {
        bf16_pair(low, high)
    } else {
        // Assembly takes values; a variable would be handed over by its address.
        let low = f32::reinterpret(u32::reinterpret(low));
        let high = f32::reinterpret(u32::reinterpret(high));
        let out: u32;
        if comptime!(halves.f16) {
            gpu_asm!(
                "cvt.rn.f16x2.f32 {d}, {h}, {l};",
                h = in(_) high, l = in(_) low, d = out(_) out,
                options(pure, nomem),
            );
        } else {
            gpu_asm!(
                "cvt.rn.bf16x2.f32 {d}, {h}, {l};",
                h = in(_) high, l = in(_) low, d = out(_) out,
                options(pure, nomem),
            );
        }
        out
    }
}

/// The same, but what is beyond half precision becomes its largest number.
#[cube]
pub fn packed_finite(low: f32, high: f32, #[comptime] halves: Halves) -> u32 {
    if comptime!(halves.f16 && halves.native) {
        let low = f32::reinterpret(u32::reinterpret(low));
        let high = f32::reinterpret(u32::reinterpret(high));
        let out: u32;
        gpu_asm!(
            "cvt.rn.satfinite.f16x2.f32 {d}, {h}, {l};",
            h = in(_) high, l = in(_) low, d = out(_) out,
            options(pure, nomem),
        );
        out
    } else if comptime!(halves.f16) {
        let low = clamp(low, -LARGEST_HALF, LARGEST_HALF);
        packed(low, clamp(high, -LARGEST_HALF, LARGEST_HALF), halves)
    } else {
        packed(low, high, halves)
    }
}

/// The words of `count` values, which are [finite](packed_finite()).
#[cube]
pub fn packed_lanes(
    values: &Array<f32>,
    #[comptime] count: usize,
    #[comptime] halves: Halves,
) -> Array<u32> {
    let mut words = Array::<u32>::new(comptime!(count / 2));
    #[unroll]
    for i in 0..comptime!(count / 2) {
        let (low, high) = (values[comptime!(i * 2)], values[comptime!(i * 2 + 1)]);
        words[i] = packed_finite(low, high, halves);
    }
    words
}

/// Stores `count` words from `to` on, both multiples of four, by fours where the language can.
#[cube]
pub fn put_words(
    tile: &Shared<[u32]>,
    to: u32,
    words: &Array<u32>,
    #[comptime] count: usize,
    #[comptime] native: bool,
) {
    if comptime!(native) {
        #[unroll]
        for i in 0..comptime!(count / 4) {
            let mut four = Vector::<u32, Const<4>>::empty();
            #[unroll]
            for w in 0..4usize {
                four.insert(w, words[comptime!(i * 4 + w)]);
            }
            let fours = tile.as_vectorized().with_vector_size::<Const<4>>();
            put(fours, to / 4 + i as u32, four);
        }
    } else {
        #[unroll]
        for i in 0..count {
            put(tile, to + i as u32, words[i]);
        }
    }
}

/// Stores `count` values as [`packed_lanes()`] from word `to` on; it and the words are multiples of four.
#[cube]
pub fn put_lanes(
    tile: &Shared<[u32]>,
    to: u32,
    lanes: &Array<f32>,
    #[comptime] count: usize,
    #[comptime] halves: Halves,
) {
    let words = packed_lanes(lanes, count, halves);
    put_words(
        tile,
        to,
        &words,
        comptime!(count / 2),
        comptime!(halves.native),
    );
}

/// 2 to the power of a number; 0 of what is far below.
#[cube]
pub fn power_of_two(exponent: f32, #[comptime] native: bool) -> f32 {
    if comptime!(native) {
        let exponent = f32::reinterpret(u32::reinterpret(exponent));
        let out: f32;
        gpu_asm!(
            "ex2.approx.ftz.f32 {d}, {e};",
            e = in(_) exponent, d = out(_) out,
            options(pure, nomem),
        );
        out
    } else {
        (exponent * std::f32::consts::LN_2).exp()
    }
}

/// The two values of a word.
#[cube]
fn unpacked(word: u32, #[comptime] halves: Halves) -> (f32, f32) {
    if comptime!(halves.f16) {
        (half_value(word & 0xffff), half_value(word >> 16))
    } else {
        let low = f32::reinterpret(word << 16);
        (low, f32::reinterpret(word & 0xffff_0000))
    }
}

/// As [`f16_value()`], but infinities stay infinite wherever it runs, as they do on matrix units.
#[cube]
fn half_value(bits: u32) -> f32 {
    let infinite = (bits & 0x7c00) == 0x7c00;
    let value = u32::reinterpret(f16_value(bits));
    f32::reinterpret(value | select(infinite, 0x7f80_0000u32, 0u32))
}

/// What [`load_matrices()`] reads begins at a multiple of so many bytes.
pub const ALIGNMENT: usize = 16;

/// Four matrices of eight rows of four words out of shared memory (PTX ISA, `ldmatrix`): unit `8 i + r` of a plane names the word at
/// which row `r` of matrix `i` starts, unit `4 g + t` gets word `t` of row `g` of each; `turned`, halves `g` of rows `2 t` and `2 t + 1`.
#[cube]
pub fn load_matrices(
    tile: &Shared<[u32]>,
    at: u32,
    #[comptime] turned: bool,
) -> Vector<u32, Const<4>> {
    let row = &tile[at as usize..(at + 4) as usize];
    let address = generic_to_shared::<u32>(row.as_ptr());
    let trans = comptime!(if turned { ".trans" } else { "" });
    let out: Vector<u32, Const<4>>;
    gpu_asm!(
        "ldmatrix.sync.aligned.m8n8.x4{trans}.shared::cta.b16 {d}, [{a}];",
        d = out(_) out, a = mem_in(_) address,
        options(explicit_mem),
    );
    out
}

/// Adds the products of some left fragments, below each other, with some right ones, side by side (`counts`), to the sums from
/// `at` on, `[left][right][4]`. All units of the cube call it together.
#[cube]
pub fn multiply_add(
    left: &Array<u32>,
    right: &Array<u32>,
    sums: &mut Array<f32>,
    exchange: &Shared<[u32]>,
    #[comptime] counts: (usize, usize),
    #[comptime] at: usize,
    #[comptime] halves: Halves,
) {
    let (below, count) = comptime!(counts);
    if comptime!(halves.native) {
        #[unroll]
        for n in 0..count {
            #[unroll]
            for m in 0..below {
                let place = comptime!(at + (m * count + n) * 4);
                instruction(
                    left,
                    right,
                    sums,
                    comptime!(m * 4),
                    comptime!(n * 2),
                    place,
                    halves,
                );
            }
        }
    } else {
        for some in 0..comptime!((below * count.div_ceil(AT_ONCE)) as u32) {
            let (m, chunk) = (
                some % comptime!(below as u32),
                some / comptime!(below as u32),
            );
            substitute(left, right, sums, exchange, m, chunk, count, at, halves);
        }
    }
}

#[cube]
fn instruction(
    left: &Array<u32>,
    right: &Array<u32>,
    sums: &mut Array<f32>,
    #[comptime] from_left: usize,
    #[comptime] from_right: usize,
    #[comptime] at: usize,
    #[comptime] halves: Halves,
) {
    let a0 = left[from_left];
    let a1 = left[comptime!(from_left + 1)];
    let a2 = left[comptime!(from_left + 2)];
    let a3 = left[comptime!(from_left + 3)];
    let b0 = right[from_right];
    let b1 = right[comptime!(from_right + 1)];
    let c0 = sums[at];
    let c1 = sums[comptime!(at + 1)];
    let c2 = sums[comptime!(at + 2)];
    let c3 = sums[comptime!(at + 3)];
    let d: Vector<f32, Const<4>>;
    if comptime!(halves.f16) {
        gpu_asm!(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d}, ",
            "{{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{c0}, {c1}, {c2}, {c3}}};",
            a0 = in(_) a0, a1 = in(_) a1, a2 = in(_) a2, a3 = in(_) a3, b0 = in(_) b0, b1 = in(_) b1,
            c0 = in(_) c0, c1 = in(_) c1, c2 = in(_) c2, c3 = in(_) c3, d = out(_) d,
            options(nomem),
        );
    } else {
        gpu_asm!(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {d}, ",
            "{{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{c0}, {c1}, {c2}, {c3}}};",
            a0 = in(_) a0, a1 = in(_) a1, a2 = in(_) a2, a3 = in(_) a3, b0 = in(_) b0, b1 = in(_) b1,
            c0 = in(_) c0, c1 = in(_) c1, c2 = in(_) c2, c3 = in(_) c3, d = out(_) d,
            options(nomem),
        );
    }
    #[unroll]
    for i in 0..4usize {
        sums[comptime!(at + i)] = d.extract(i);
    }
}

/// Left fragment `m` and as many right ones as are multiplied at once; the last chunk takes some of the one before along.
#[cube]
fn substitute(
    left: &Array<u32>,
    right: &Array<u32>,
    sums: &mut Array<f32>,
    exchange: &Shared<[u32]>,
    m: u32,
    chunk: u32,
    #[comptime] count: usize,
    #[comptime] at: usize,
    #[comptime] halves: Halves,
) {
    let some = comptime!(count.min(AT_ONCE) as u32);
    let first = min(chunk * some, comptime!(count as u32 - some));
    let known = chunk * some - first;
    let words = comptime!(4 + 2 * some);
    #[unroll]
    for i in 0..4u32 {
        put(exchange, UNIT_POS * words + i, left[(m * 4 + i) as usize]);
    }
    #[unroll]
    for i in 0..comptime!(2 * some) {
        let word = right[(2 * first + i) as usize];
        put(exchange, UNIT_POS * words + 4 + i, word);
    }
    sync_cube();
    let plane = UNIT_POS / PLANE * PLANE;
    let (group, inner) = (UNIT_POS % PLANE / 4, UNIT_POS % 4);
    for product in known * 4..comptime!(4 * some) {
        let (n, i) = (product / 4, product % 4);
        let column = inner * 2 + i % 2;
        let mut sum = 0.0f32;
        for pair in 0..8u32 {
            let row = plane + group * 4 + pair % 4;
            let a = exchange[(row * words + pair / 4 * 2 + i / 2) as usize];
            let unit = plane + column * 4 + pair % 4;
            let b = exchange[(unit * words + 4 + n * 2 + pair / 4) as usize];
            let (a_low, a_high) = unpacked(a, halves);
            let (b_low, b_high) = unpacked(b, halves);
            sum += a_low * b_low + a_high * b_high;
        }
        let place = (m * comptime!(count as u32) + first + n) * 4 + i;
        sums[comptime!(at) + place as usize] += sum;
    }
    sync_cube();
}
