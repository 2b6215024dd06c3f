//! Codes of block formats, and what they stand for.
//!
//! Where the bits of a run lie in consecutive bytes at one shift they are read by words; other parts of a code
//! (grids, signs, single bits) are read group by group. The points of grids do not lie in the weights: they are
//! the first elements of the vectors, see [`grid_points`].

use super::bits::{Reach, bits_at, e4m3_value};
use super::decode::RUN;
use super::env::Buffers;
use super::gather::{gather_groups, gather_words, group_of};
use crate::plan::byte_codes::is_wordwise;
use cubecl::prelude::*;
use rusty_loader::formats::{ALL, BitField, Codec, Grid, Levels, Part, TritRun};

/// The grids of all formats, each once.
fn grids() -> impl Iterator<Item = &'static [u16]> {
    let parts = ALL.iter().flat_map(|c| c.codes);
    let mut seen = Vec::new();
    parts.filter_map(move |p| match p {
        Part::Grid(grid) if !seen.contains(&grid.points.as_ptr()) => {
            seen.push(grid.points.as_ptr());
            Some(grid.points)
        }
        _ => None,
    })
}

/// Whether decoding a format looks points up.
pub fn uses_grid(codec: &Codec) -> bool {
    codec.codes.iter().any(|p| matches!(p, Part::Grid(_)))
}

/// What the vectors of a plan start with if one of its formats uses a grid: the points of all grids, as numbers.
pub fn grid_points() -> impl Iterator<Item = f32> {
    grids().flatten().map(|p| f32::from(*p))
}

/// Where the points of a grid start.
fn grid_start(grid: &Grid) -> u32 {
    let before = grids().take_while(|g| g.as_ptr() != grid.points.as_ptr());
    before.map(|g| g.len() as u32).sum()
}

/// Flips bits of `codes` by the codes of the run whose first element is `first`, the lowest bit of a code being bit `up`.
#[cube]
pub fn run_codes(
    buffers: &Buffers<'_>,
    block: u32,
    first: u32,
    codes: &mut Array<u32>,
    #[comptime] up: u32,
    #[comptime] codec: &'static Codec,
) {
    #[unroll]
    for p in 0..comptime!(codec.codes.len()) {
        match comptime!(codec.codes[p]) {
            Part::Bits(field) => flip_bits(
                buffers.weights,
                block,
                first,
                codes,
                up,
                field,
                comptime!(codec.block_bytes),
            ),
            Part::Grid(grid) => flip_points(
                buffers,
                block,
                first,
                codes,
                up,
                grid,
                comptime!(codec.block_bytes),
            ),
            Part::EvenSigns { field, place } => flip_signs(
                buffers.weights,
                block,
                first,
                codes,
                comptime!(up + place),
                field,
                comptime!(codec.block_bytes),
            ),
            Part::Trits(runs) =>
            {
                #[unroll]
                for i in 0..RUN {
                    codes[i] ^= trit_of(buffers.weights, block, first + i as u32, runs) << up;
                }
            }
        }
    }
}

/// Flips a run's codes by a field of bits, `up` above where it belongs.
#[cube]
fn flip_bits(
    words: &[u32],
    block: u32,
    first: u32,
    codes: &mut Array<u32>,
    #[comptime] up: u32,
    #[comptime] field: BitField,
    #[comptime] block_bytes: usize,
) {
    if comptime!(is_wordwise(&field)) {
        let to = comptime!(up + field.place);
        gather_words(words, block, first, codes, to, field, block_bytes);
    } else {
        gather_groups(words, block, first, codes, up, field, block_bytes);
    }
}

/// Flips a run's codes by the points of a grid, `up` above their bits.
#[cube]
fn flip_points(
    buffers: &Buffers<'_>,
    block: u32,
    first: u32,
    codes: &mut Array<u32>,
    #[comptime] up: u32,
    #[comptime] grid: Grid,
    #[comptime] block_bytes: usize,
) {
    let width = comptime!(grid.width());
    #[unroll]
    for k in 0..comptime!(RUN / width) {
        let at = first + comptime!((k * width) as u32);
        let point = point_of(buffers, block, at, grid, block_bytes);
        #[unroll]
        for i in 0..width {
            let shift = comptime!(grid.bits * i as u32);
            codes[comptime!(k * width + i)] ^=
                ((point >> shift) & comptime!((1u32 << grid.bits) - 1)) << up;
        }
    }
}

/// Flips bit `to` of a run's codes by signs of even parity.
#[cube]
fn flip_signs(
    words: &[u32],
    block: u32,
    first: u32,
    codes: &mut Array<u32>,
    #[comptime] to: u32,
    #[comptime] field: BitField,
    #[comptime] block_bytes: usize,
) {
    #[unroll]
    for k in 0..comptime!(RUN / 8) {
        let at = first + comptime!((k * 8) as u32);
        let signs = even_signs(group_of(words, block, at, field, block_bytes));
        #[unroll]
        for i in 0..8usize {
            codes[comptime!(k * 8 + i)] ^= ((signs >> comptime!(i as u32)) & 1) << to;
        }
    }
}

/// The code of one element.
#[cube]
pub fn code_of(
    buffers: &Buffers<'_>,
    block: u32,
    element: u32,
    #[comptime] codec: &'static Codec,
) -> u32 {
    let mut code = 0u32;
    #[unroll]
    for p in 0..comptime!(codec.codes.len()) {
        match comptime!(codec.codes[p]) {
            Part::Bits(field) => {
                code |= group_of(
                    buffers.weights,
                    block,
                    element,
                    field,
                    comptime!(codec.block_bytes),
                )
            }
            Part::Grid(grid) => {
                let place = element % comptime!(grid.width() as u32);
                let point = point_of(buffers, block, element, grid, comptime!(codec.block_bytes));
                code |= (point >> (place * grid.bits)) & comptime!((1u32 << grid.bits) - 1);
            }
            Part::EvenSigns { field, place } => {
                let signs = even_signs(group_of(
                    buffers.weights,
                    block,
                    element,
                    field,
                    comptime!(codec.block_bytes),
                ));
                code |= ((signs >> (element % 8)) & 1) << place;
            }
            Part::Trits(runs) => code |= trit_of(buffers.weights, block, element, runs),
        }
    }
    code
}

/// What a code stands for.
#[cube]
pub fn level_of(code: u32, #[comptime] codec: &'static Codec) -> f32 {
    match comptime!(codec.levels) {
        Levels::Offset(by) => f32::cast_from(code) - comptime!(by as f32),
        Levels::Signed => {
            let up = comptime!(32 - codec.code_bits());
            f32::cast_from(i32::reinterpret(code << up) >> comptime!(up as i32))
        }
        Levels::Floats(levels) => {
            let mut value = comptime!(levels[0]).runtime();
            #[unroll]
            for i in 1..16usize {
                value = select(code == i as u32, comptime!(levels[i]).runtime(), value);
            }
            value
        }
        Levels::E4M3 => e4m3_value(code),
        Levels::Table(levels) => {
            let mut word = comptime!(levels_word(levels, 0)).runtime();
            #[unroll]
            for w in 1..comptime!(levels.len() / 4) {
                word = select(
                    code >= comptime!(w as u32 * 4),
                    comptime!(levels_word(levels, w)).runtime(),
                    word,
                );
            }
            let up = 24 - (code & 3) * 8;
            f32::cast_from(i32::reinterpret(word << up) >> 24)
        }
    }
}

/// Four levels of a table, the first in the lowest byte.
fn levels_word(levels: &[i8], word: usize) -> u32 {
    let four: [u8; 4] = std::array::from_fn(|i| levels[word * 4 + i] as u8);
    u32::from_le_bytes(four)
}

/// The point that serves an element.
#[cube]
fn point_of(
    buffers: &Buffers<'_>,
    block: u32,
    element: u32,
    #[comptime] grid: Grid,
    #[comptime] block_bytes: usize,
) -> u32 {
    let mut index = comptime!(grid_start(&grid)).runtime();
    #[unroll]
    for f in 0..comptime!(grid.index.len()) {
        index += group_of(
            buffers.weights,
            block,
            element,
            comptime!(grid.index[f]),
            block_bytes,
        );
    }
    u32::cast_from(buffers.vectors[index as usize])
}

/// Eight signs from seven: their parity is even.
#[cube]
fn even_signs(seven: u32) -> u32 {
    let halves = seven ^ (seven >> 4);
    let quarters = halves ^ (halves >> 2);
    seven | (((quarters ^ (quarters >> 1)) & 1) << 7)
}

/// A ternary digit.
#[cube]
fn trit_of(words: &[u32], block: u32, element: u32, #[comptime] runs: &'static [TritRun]) -> u32 {
    let mut byte = 0u32.runtime();
    let mut digit = 0u32.runtime();
    #[unroll]
    for r in 0..comptime!(runs.len()) {
        let run = comptime!(runs[r]);
        let inside = element >= comptime!(run.first as u32);
        let rest = select(
            inside,
            element - comptime!(run.first as u32),
            0u32.runtime(),
        );
        let at = comptime!(run.offset as u32) + rest % comptime!(run.lanes as u32);
        byte = select(inside, at, byte);
        digit = select(inside, rest / comptime!(run.lanes as u32), digit);
    }
    let mut number = bits_at(words, block, byte * 8, 8u32, Reach::Inside);
    #[unroll]
    for power in 1..5u32 {
        number = select(digit >= power, number * 3, number);
    }
    ((number & 0xff) * 3) >> 8
}
