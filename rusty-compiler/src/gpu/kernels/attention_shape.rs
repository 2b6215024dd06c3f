//! What the kernels of attention share: its shape, what is seen, and how keys and values are read.

use super::bits::f16_value;
use super::elementwise::safe_tanh;
use super::env::{Buffers, header, put};
use super::page_blocks::pair_of;
use super::page_words::PageWords;
use super::pieces::{FIRST_HEAD, Piece};
use super::sink::token_base;
use crate::plan::F32;
use cubecl::prelude::*;

/// Keys of a tile's step of the softmax.
pub const KEYS: u32 = 32;

/// Below every score, and finite: WGSL has no infinities to rely on.
pub const LOWEST: f32 = -1.0e30;

/// The attention that a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Width of a head's queries and keys, even.
    pub head_dim: u32,
    /// Width of a head's values, even.
    pub value_dim: u32,
    /// Whether values are the first lanes of keys.
    pub of_keys: bool,
    /// Cubes among which the query heads of a key/value head are shared.
    pub shares: u32,
    /// Factor on the scores.
    pub scale: F32,
    /// Keys that a row sees, itself included.
    pub window: Option<u32>,
    /// `cap * tanh(score / cap)`.
    pub softcap: Option<F32>,
    /// Storage.
    pub kv: PageWords,
    /// What each buffer has, where the layer's keys and values lie in several.
    pub piece: Option<Piece>,
}

impl AttentionShape {
    /// Query heads of a cube.
    pub fn group(&self) -> u32 {
        self.heads / self.kv_heads / self.shares
    }

    /// What a page holds: keys and values, or keys alone.
    pub fn halves(&self) -> u32 {
        if self.of_keys { 1 } else { 2 }
    }

    /// Key/value heads of a launch.
    pub fn launch_heads(&self) -> u32 {
        self.piece.map_or(self.kv_heads, |piece| piece.heads)
    }

    /// Words of a token's keys, or values, in a launch's buffer.
    pub fn words(&self) -> u32 {
        self.kv.token_words(self.launch_heads() * self.head_dim)
    }

    /// Cubes of a tile in a launch.
    pub fn cubes(&self) -> u32 {
        self.launch_heads() * self.shares
    }
}

/// The key from which a tile starts whose first row is at position `lowest`: a multiple of [`KEYS`].
#[cube]
pub fn first_key(lowest: u32, #[comptime] shape: AttentionShape) -> u32 {
    match comptime!(shape.window) {
        Some(window) => {
            let start = lowest + 1 - min(window.runtime(), lowest + 1);
            start - start % KEYS
        }
        None => 0u32.runtime(),
    }
}

/// Whether a query at position `own` sees the key at position `at`.
#[cube]
pub fn visible(at: u32, own: u32, #[comptime] shape: AttentionShape) -> bool {
    match comptime!(shape.window) {
        Some(window) => at <= own && own - at < window,
        None => at <= own,
    }
}

/// A score below its cap.
#[cube]
pub fn capped(score: f32, #[comptime] shape: AttentionShape) -> f32 {
    match comptime!(shape.softcap) {
        Some(cap) => comptime!(cap.get()) * safe_tanh(score / comptime!(cap.get())),
        None => score,
    }
}

/// Where the keys and values of a tile's next step start for the cube's head: of key `key + i` at `2 i` and `2 i + 1`. Behind
/// the end lies the last key again.
#[cube]
pub fn locate(
    buffers: &Buffers<'_>,
    places: &Shared<[u32]>,
    pages: u32,
    key: u32,
    end: u32,
    #[comptime] shape: AttentionShape,
    #[comptime] units: u32,
) {
    let words = comptime!(shape.words());
    let halves = comptime!(shape.halves());
    let head = CUBE_POS_Y / shape.shares * comptime!(shape.kv.token_words(shape.head_dim));
    let mut i = UNIT_POS;
    while i < KEYS {
        let position = min(key + i, end - 1);
        put(
            places,
            i * 2,
            token_base(buffers.step, pages, position, 0u32.runtime(), halves, words) + head,
        );
        put(
            places,
            i * 2 + 1,
            token_base(
                buffers.step,
                pages,
                position,
                comptime!(shape.halves() - 1).runtime(),
                halves,
                words,
            ) + head,
        );
        i += units;
    }
}

/// Number of the cube among those of all of the layer's heads.
#[cube]
pub fn cube_of_heads(buffers: &Buffers<'_>, #[comptime] shape: AttentionShape) -> u32 {
    if comptime!(shape.piece.is_some()) {
        CUBE_POS_Y + buffers.args[FIRST_HEAD] * comptime!(shape.shares)
    } else {
        CUBE_POS_Y
    }
}

/// Position of a row in its sequence.
#[cube]
pub fn position_of(buffers: &Buffers<'_>, row: u32) -> u32 {
    buffers.step[(buffers.step[header::POSITIONS] + row) as usize]
}

/// A pair of lanes of a key or value that starts at word `at`.
#[cube]
pub fn lanes_of(words: &[u32], at: u32, pair: u32, #[comptime] kv: PageWords) -> (f32, f32) {
    match kv {
        PageWords::F32 => {
            let low = words[(at + pair * 2) as usize];
            let high = words[(at + pair * 2 + 1) as usize];
            (f32::reinterpret(low), f32::reinterpret(high))
        }
        PageWords::F16 | PageWords::Bf16 => halves_of(words[(at + pair) as usize], kv),
        PageWords::Codes(bits) => pair_of(words, at, pair, bits),
    }
}

/// The two values of a word of half-precision keys or values.
#[cube]
pub fn halves_of(word: u32, #[comptime] kv: PageWords) -> (f32, f32) {
    if comptime!(kv == PageWords::F16) {
        (f16_value(word & 0xffff), f16_value(word >> 16))
    } else {
        let low = f32::reinterpret(word << 16);
        (low, f32::reinterpret(word & 0xffff_0000))
    }
}
