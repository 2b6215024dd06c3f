//! Where results go: arena rows, or the pages of a layer's cache.
//!
//! Stores are made for pairs of lanes, because two half-precision keys or values share a word, or for whole blocks.
//!
//! A page of a layer holds 16 tokens' keys, then their values (none where values are lanes of the keys); each token's
//! heads are contiguous, all of them or those of a [piece](super::pieces).

use super::bits::{bf16_pair, f16_pair};
use super::body::{Program, evaluate};
use super::env::{Buffers, header, put};
use super::page_blocks::{rotate, store_codes};
use super::page_words::{BLOCK, PageWords};
use super::pieces::{Piece, first_lane};
use super::reduce::{Team, place_in};
use crate::PAGE_TOKENS;
use cubecl::prelude::*;

/// A resolved sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The arena, at the word that scalar `arg` states.
    Arena {
        /// Scalar of the launch.
        arg: usize,
    },
    /// The layer's pages: keys (`half` 0) or values (`half` 1).
    Page {
        /// 0 keys, 1 values.
        half: u32,
        /// How many of both a page has.
        halves: u32,
        /// Storage.
        kv: PageWords,
        /// What each buffer has, where the layer's pages lie in several.
        piece: Option<Piece>,
    },
}

impl Target {
    /// What each buffer has of pages that lie in several.
    fn piece(&self) -> Option<Piece> {
        match self {
            Target::Page { piece, .. } => *piece,
            Target::Arena { .. } => None,
        }
    }

    /// Bits of a code where blocks are stored.
    fn block_bits(&self) -> Option<u32> {
        match self {
            Target::Page {
                kv: PageWords::Codes(bits),
                ..
            } => Some(*bits),
            _ => None,
        }
    }
}

/// A tail with everything resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    /// Lanes per row.
    pub width: u32,
    /// What is stored.
    pub program: Program,
    /// Where.
    pub target: Target,
}

impl Store {
    /// Lanes of a token in a launch's buffer of pages.
    fn token_lanes(&self) -> u32 {
        let piece = self.target.piece();
        piece.map_or(self.width, |piece| piece.lanes())
    }
}

/// Word at which a token's keys (`half` 0) or values start.
#[cube]
pub fn token_base(
    step: &[u32],
    pages: u32,
    position: u32,
    half: u32,
    #[comptime] halves: u32,
    #[comptime] words: u32,
) -> u32 {
    let tokens = comptime!(PAGE_TOKENS as u32);
    let page = step[(pages + position / tokens) as usize];
    ((page * halves + half) * tokens + position % tokens) * words
}

/// Stores lanes `first` to before `end` of a tail whose lanes the team has all to itself: whole blocks, where pages have blocks. Of
/// pages in several buffers, what the launch's has.
#[cube]
pub fn store_segment(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    factors: &Sequence<f32>,
    base: u32,
    row: u32,
    first: u32,
    end: u32,
    #[comptime] store: Store,
    #[comptime] team: Team,
) {
    let (first, end) = held(buffers, first, end, comptime!(store.target.piece()));
    let bits = comptime!(store.target.block_bits());
    if let Some(bits) = bits {
        let mut lane = first + place_in(team) * BLOCK;
        while lane < end {
            store_block(
                buffers,
                results,
                factors,
                base,
                row,
                lane,
                comptime!(store.clone()),
                bits,
            );
            lane += comptime!(team.units * BLOCK);
        }
    } else {
        let mut lane = first + place_in(team) * 2;
        while lane < end {
            store_pair(
                buffers,
                results,
                results,
                factors,
                base,
                row,
                lane,
                end,
                comptime!(store.clone()),
            );
            lane += comptime!(team.units * 2);
        }
    }
}

/// What of lanes `first` to before `end` the launch's buffer has.
#[cube]
fn held(
    buffers: &Buffers<'_>,
    first: u32,
    end: u32,
    #[comptime] piece: Option<Piece>,
) -> (u32, u32) {
    match piece {
        Some(piece) => {
            let start = first_lane(buffers, piece);
            (
                max(first, start),
                min(end, start + comptime!(piece.lanes())),
            )
        }
        None => (first, end),
    }
}

/// A lane, and the end of lanes, counted from the first that the launch's buffer has.
#[cube]
fn inside(
    buffers: &Buffers<'_>,
    lane: u32,
    end: u32,
    #[comptime] piece: Option<Piece>,
) -> (u32, u32) {
    match piece {
        Some(piece) => {
            let start = first_lane(buffers, piece);
            (lane - start, end - start)
        }
        None => (lane, end),
    }
}

/// Evaluates a tail for a block of lanes from `first` on and stores its codes in the row's page.
#[cube]
fn store_block(
    buffers: &Buffers<'_>,
    results: &Sequence<f32>,
    factors: &Sequence<f32>,
    base: u32,
    row: u32,
    first: u32,
    #[comptime] store: Store,
    #[comptime] bits: u32,
) {
    let last = comptime!(store.program.insts.len() - 1);
    let mut lanes = Array::<f32>::new(32usize);
    for i in 0..BLOCK {
        let lane = evaluate(
            buffers,
            results,
            factors,
            base,
            row,
            first + i,
            comptime!(store.program.clone()),
            last,
        );
        lanes[i as usize] = stored(lane, comptime!(PageWords::Codes(bits)));
    }
    rotate(&mut lanes);
    if let Target::Page {
        half,
        halves,
        kv,
        piece,
    } = comptime!(store.target)
    {
        let token = token_of(
            buffers,
            row,
            half,
            halves,
            comptime!(kv.token_words(store.token_lanes())),
        );
        let (first, _) = inside(buffers, first, first, piece);
        let at = token + first / BLOCK * comptime!(bits + 1);
        store_codes(buffers.words, at, &lanes, bits);
    }
}

/// A lane as it may be stored: what is beyond the format's range becomes its largest number.
#[cube]
fn stored(lane: f32, #[comptime] kv: PageWords) -> f32 {
    let largest = comptime!(kv.largest());
    clamp(lane, comptime!(-largest), largest)
}

/// Word at which the keys or values of a row's own token start.
#[cube]
fn token_of(
    buffers: &Buffers<'_>,
    row: u32,
    #[comptime] half: u32,
    #[comptime] halves: u32,
    #[comptime] words: u32,
) -> u32 {
    let position = buffers.step[(buffers.step[header::POSITIONS] + row) as usize];
    let pages = buffers.step[(buffers.step[header::PAGES] + row) as usize];
    token_base(buffers.step, pages, position, half.runtime(), halves, words)
}

/// Evaluates a tail for two neighbouring lanes and stores what is below `end`.
#[cube]
pub fn store_pair(
    buffers: &Buffers<'_>,
    first: &Sequence<f32>,
    second: &Sequence<f32>,
    factors: &Sequence<f32>,
    base: u32,
    row: u32,
    lane: u32,
    end: u32,
    #[comptime] store: Store,
) {
    let last = comptime!(store.program.insts.len() - 1);
    let low = evaluate(
        buffers,
        first,
        factors,
        base,
        row,
        lane,
        comptime!(store.program.clone()),
        last,
    );
    let mut high = 0.0f32;
    if lane + 1 < end {
        high = evaluate(
            buffers,
            second,
            factors,
            base,
            row,
            lane + 1,
            comptime!(store.program.clone()),
            last,
        );
    }
    match comptime!(store.target) {
        Target::Arena { arg } => {
            let at = buffers.args[arg] + row * comptime!(store.width) + lane;
            put(buffers.arena, at, low);
            if lane + 1 < end {
                put(buffers.arena, at + 1, high);
            }
        }
        Target::Page {
            half,
            halves,
            kv,
            piece,
        } => {
            let words = comptime!(kv.token_words(store.token_lanes()));
            let token = token_of(buffers, row, half, halves, words);
            let (low, high) = (stored(low, kv), stored(high, kv));
            let (lane, end) = inside(buffers, lane, end, piece);
            put_pair(buffers, token, low, high, lane, end, kv);
        }
    }
}

/// Puts two neighbouring lanes of keys or values into the words of a token, what is below `end`.
#[cube]
fn put_pair(
    buffers: &Buffers<'_>,
    token: u32,
    low: f32,
    high: f32,
    lane: u32,
    end: u32,
    #[comptime] kv: PageWords,
) {
    match kv {
        PageWords::F32 => {
            put(buffers.words, token + lane, u32::reinterpret(low));
            if lane + 1 < end {
                put(buffers.words, token + lane + 1, u32::reinterpret(high));
            }
        }
        PageWords::F16 => {
            put(buffers.words, token + lane / 2, f16_pair(low, high));
        }
        PageWords::Bf16 => {
            put(buffers.words, token + lane / 2, bf16_pair(low, high));
        }
        // A pair is no block; see `store_segment`.
        PageWords::Codes(_) => {}
    }
}
