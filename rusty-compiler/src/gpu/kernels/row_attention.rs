//! Attention of rows alone: decoding, and the few rows that a step has of a sequence of many keys.
//!
//! A cube takes the query heads that share a key/value head, or a share of them, and one *split* of the row's keys
//! (flash-decoding, <https://pytorch.org/blog/flash-decoding>). Inside it each few units of a plane, a *lane group*, take keys of their
//! own, four at a time, and hold their part of the queries, of the running softmax (arXiv 2205.14135) and of the result in
//! registers; groups and planes meet only at the end. Splits meet in the arena: the cube that comes last adds them
//! up, so that no further launch is needed, but where cubes do not see what others of their launch leave: there
//! [another one](meet_splits()) does. Each row of a step may have another number of splits.
//!
//! Where the plan says so, a cube [makes its queries itself](super::row_heads), and the one that has the row's own position makes the row's
//! key and value too; but where rows of the step may see each other's keys, a launch before has made those.

use super::arrivals::{is_last, reset};
use super::attention_shape::AttentionShape;
use super::body::Program;
use super::contract::UnitConfig;
use super::env::{Buffers, SPLIT_WORDS, bound, header, is_cuda};
use super::gemv_ahead::await_earlier;
use super::page_blocks::rotate_shared;
use super::page_words::{BLOCK, PageWords};
use super::reduce::Team;
use super::row_heads::make_heads;
use super::running_softmax::{Partial, meet, turn};
use super::sink::Store;
use super::splits::{finish, leave};
use super::word_loads::{at_once, read_now};
use crate::PAGE_TOKENS;
use crate::plan::held_lanes::{HeldLanes, RUN};
use cubecl::prelude::*;

/// What a kernel for rows alone is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowAttentionConfig {
    /// Units of a cube, whole planes.
    pub team: Team,
    /// Whether units [read several words](super::word_loads) of keys and values at once.
    pub wide: bool,
    /// The attention.
    pub shape: AttentionShape,
    /// Makes the queries.
    pub query: Program,
    /// Makes keys and values of the row, a head of each per cube.
    pub stores: Vec<Store>,
    /// Scalar: arena word where splits leave their results.
    pub splits: usize,
    /// Whether the cube that comes last adds the splits of a row up; else a [launch behind](meet_splits()) does.
    pub meets: bool,
    /// Tails, over the one result.
    pub unit: UnitConfig,
}

impl RowAttentionConfig {
    /// What a unit holds.
    pub fn held(&self) -> HeldLanes {
        let widths = (self.shape.head_dim, self.shape.value_dim);
        HeldLanes::new(self.shape.group(), widths, self.team.plane)
    }

    /// Units of a lane group.
    pub fn lane_units(&self) -> u32 {
        self.held().units
    }

    /// Pairs of key lanes of a unit.
    pub fn key_pairs(&self) -> usize {
        self.held().key_pairs
    }

    /// Pairs of value lanes of a unit.
    pub fn value_pairs(&self) -> usize {
        self.held().value_pairs
    }

    /// Query heads of a cube.
    pub fn group(&self) -> usize {
        self.shape.group() as usize
    }

    /// Planes of a cube.
    pub fn planes(&self) -> u32 {
        self.team.planes()
    }

    /// Keys of a cube at a time.
    pub fn stride(&self) -> u32 {
        self.team.units / self.lane_units() * RUN as u32
    }

    /// Words of a partial result: values of each query, then maximum and sum of each.
    pub fn partial_words(&self) -> u32 {
        self.shape.group() * (self.shape.value_dim + 2)
    }

    /// Whether a run's values are asked for before its keys are there: where both have room.
    pub fn reads_ahead(&self) -> bool {
        self.held().fit_both()
    }

    /// The same, [reading several words](super::word_loads) at once where keys and values are halves that lie as that asks for.
    pub fn with_wide_reads(self) -> Self {
        let words = [
            self.shape.words(),
            self.shape.kv.token_words(self.shape.head_dim),
        ];
        let lies = |pairs: usize| {
            let step = at_once(pairs) as u32;
            words.iter().all(|words| words.is_multiple_of(step))
        };
        let halves = matches!(self.shape.kv, PageWords::F16 | PageWords::Bf16);
        Self {
            wide: halves && lies(self.key_pairs()) && lies(self.value_pairs()),
            ..self
        }
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        4 * (self.shape.group() * self.shape.head_dim + self.planes() * self.partial_words() + 1)
    }
}

/// Cubes: `(splits of rows, key/value heads times shares)`.
#[cube(launch_unchecked)]
pub fn row_attention(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    counters: &[Atomic<u32>],
    args: Sequence<u32>,
    #[comptime] config: RowAttentionConfig,
) {
    // Attention has no adapters.
    let buffers = bound(weights, arena, vectors, step, words, step, args);
    let place = place_of(&buffers);
    await_earlier();
    if place.count > 0 {
        let stash = Shared::<[f32]>::new_slice(comptime!(
            (config.planes() * config.partial_words()) as usize
        ));
        attend(&buffers, &stash, &place, comptime!(config.clone()));
        sync_cube();
        if place.count == 1 {
            finish(
                &buffers,
                &stash,
                0u32.runtime(),
                comptime!(config.planes()).runtime(),
                place.row,
                comptime!(config.clone()),
            );
        } else {
            let first = first_left(&buffers, &place, comptime!(config.clone()));
            leave(
                &buffers,
                &stash,
                first + place.number * comptime!(config.partial_words()),
                comptime!(config.clone()),
            );
            if comptime!(config.meets) {
                meet_last(&buffers, counters, &place, first, config);
            }
        }
    }
}

/// Adds up what the splits of each row left in a launch before. Cubes: as many as [there](row_attention()), of which a row's first do it.
#[cube(launch_unchecked)]
pub fn meet_splits(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: RowAttentionConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    let place = place_of(&buffers);
    await_earlier();
    if place.count > 1 && place.number == 0 {
        finish(
            &buffers,
            buffers.arena,
            first_left(&buffers, &place, comptime!(config.clone())),
            place.count,
            place.row,
            config,
        );
    }
}

/// Which split of which row a cube takes, and what the step says of the row.
#[derive(CubeType)]
struct SplitPlace {
    row: u32,
    /// Which of the row's splits it is.
    number: u32,
    /// How many there are; 0: none, and nothing is to be done.
    count: u32,
    /// Splits of the rows before, which leave their results, and count, in front of this row's.
    before: u32,
    /// The row's own position.
    position: u32,
    /// Word of the step where its list of pages starts.
    pages: u32,
    /// Whether this launch makes heads.
    makes_heads: bool,
}

/// What a cube has to do. The step's words are none of another launch's, so this needs no waiting.
#[cube]
fn place_of(buffers: &Buffers<'_>) -> SplitPlace {
    let split = early(buffers, header::SPLITS as u32) + CUBE_POS_X * SPLIT_WORDS;
    let row = early(buffers, split);
    SplitPlace {
        row,
        number: early(buffers, split + 1),
        count: early(buffers, split + 2),
        before: early(buffers, split + 3),
        position: early(buffers, early(buffers, header::POSITIONS as u32) + row),
        pages: early(buffers, early(buffers, header::PAGES as u32) + row),
        makes_heads: early(buffers, header::HEADS as u32) == 0,
    }
}

/// A word of the step, read here and not where it is needed.
#[cube]
fn early(buffers: &Buffers<'_>, at: u32) -> u32 {
    let cuda = is_cuda();
    if comptime!(cuda) {
        read_now(buffers.step, at)
    } else {
        buffers.step[at as usize]
    }
}

/// Word of the arena from which on the splits of a row and its heads leave their results, one behind the other.
#[cube]
fn first_left(
    buffers: &Buffers<'_>,
    place: &SplitPlace,
    #[comptime] config: RowAttentionConfig,
) -> u32 {
    let before = place.before * CUBE_COUNT_Y + CUBE_POS_Y * place.count;
    buffers.args[comptime!(config.splits)] + before * comptime!(config.partial_words())
}

/// The cube that comes last adds up what the splits of its row and heads have left from word `first` on.
#[cube]
fn meet_last(
    buffers: &Buffers<'_>,
    counters: &[Atomic<u32>],
    place: &SplitPlace,
    first: u32,
    #[comptime] config: RowAttentionConfig,
) {
    let own = place.before * CUBE_COUNT_Y + CUBE_POS_Y;
    if is_last(counters, own, place.count) {
        finish(
            buffers,
            buffers.arena,
            first,
            place.count,
            place.row,
            config,
        );
        reset(counters, own);
    }
}

/// A split of a row's keys: each plane's partial result into `stash`.
#[cube]
fn attend(
    buffers: &Buffers<'_>,
    stash: &Shared<[f32]>,
    place: &SplitPlace,
    #[comptime] config: RowAttentionConfig,
) {
    let q = Shared::<[f32]>::new_slice(comptime!(config.group() * config.shape.head_dim as usize));
    let end = place.position + 1;
    let start = match comptime!(config.shape.window) {
        Some(window) => end - min(window.runtime(), end),
        None => 0u32.runtime(),
    };
    let tokens = comptime!(PAGE_TOKENS as u32);
    let first = start - start % tokens;
    let share = (end - first).div_ceil(place.count).div_ceil(tokens) * tokens;
    let from = min(first + place.number * share, end);
    let to = min(from + share, end);
    let makes_own = place.makes_heads && from < to && to == end;
    make_heads(buffers, &q, place.row, makes_own, comptime!(config.clone()));
    let in_blocks = comptime!(config.shape.kv.is_blocks());
    let mut state = Partial::new(comptime!(config.clone()));
    let queries = held_queries(&q, comptime!(config.clone()));
    let group_units = comptime!(config.lane_units());
    let mut base = from + UNIT_POS / group_units * RUN as u32;
    let mut left = (to - from).div_ceil(comptime!(config.stride()));
    // As many turns for every unit: planes exchange values inside.
    while left > 0 {
        turn(
            buffers,
            &mut state,
            &queries,
            place.pages,
            base,
            start,
            to,
            comptime!(config.clone()),
        );
        base += comptime!(config.stride());
        left -= 1;
    }
    meet(&mut state, comptime!(config.clone()));
    state.stash(stash, comptime!(config.clone()));
    if in_blocks {
        sync_cube();
        turn_results(stash, comptime!(config.clone()));
    }
}

/// Turns what was summed of values in blocks back.
#[cube]
fn turn_results(stash: &Shared<[f32]>, #[comptime] config: RowAttentionConfig) {
    rotate_shared(
        stash,
        comptime!(config.shape.group() * config.shape.value_dim / BLOCK),
        comptime!(config.partial_words()),
        comptime!(config.planes()),
        comptime!(config.team.units),
    );
}

/// The lanes of the queries that a unit multiplies with: `[head][pair][side]`.
#[cube]
fn held_queries(q: &Shared<[f32]>, #[comptime] config: RowAttentionConfig) -> Array<f32> {
    let pairs = comptime!(config.key_pairs());
    let mut held = Array::<f32>::new(comptime!(config.group() * pairs * 2));
    #[unroll]
    for head in 0..comptime!(config.group()) {
        #[unroll]
        for i in 0..pairs {
            let lane = pair_of_unit(i, pairs, comptime!(config.clone())) * 2;
            let at = comptime!(head as u32 * config.shape.head_dim) + lane;
            held[comptime!((head * pairs + i) * 2)] = q[at as usize];
            held[comptime!((head * pairs + i) * 2 + 1)] = q[(at + 1) as usize];
        }
    }
    held
}

/// Pair `i` of the `pairs` that a unit has of a head: side by side where it reads several words at once; else those of the lane group
/// are, so that its units read neighbouring words.
#[cube]
pub fn pair_of_unit(
    #[comptime] i: usize,
    #[comptime] pairs: usize,
    #[comptime] config: RowAttentionConfig,
) -> u32 {
    let units = comptime!(config.lane_units());
    let inner = UNIT_POS % units;
    if comptime!(config.wide) {
        inner * comptime!(pairs as u32) + comptime!(i as u32)
    } else {
        inner + comptime!(i as u32 * units)
    }
}
