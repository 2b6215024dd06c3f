//! The heads that [attention of rows alone](super::row_attention) makes itself: a row's queries, and its key and value.
//!
//! Each is made by one plane, so that none waits for another's sums: a step of one row has few cubes, and nothing else hides what a
//! barrier costs.

use super::attention_shape::cube_of_heads;
use super::body::evaluate;
use super::env::{Buffers, put, sync_buffers};
use super::factors::segment_factors;
use super::page_blocks::rotate_shared;
use super::page_words::BLOCK;
use super::reduce::place_in;
use super::row_attention::RowAttentionConfig;
use super::sink::store_segment;
use cubecl::prelude::*;

/// Scaled queries of the cube's heads into shared memory, `[head][lane]`, and, where it `makes_own`, key and value of the row
/// into its page. Behind it all units see both.
#[cube]
pub fn make_heads(
    buffers: &Buffers<'_>,
    q: &Shared<[f32]>,
    row: u32,
    makes_own: bool,
    #[comptime] config: RowAttentionConfig,
) {
    let plane = UNIT_POS / config.team.plane;
    let planes = comptime!(config.planes() as usize);
    let heads = comptime!(config.group());
    #[unroll]
    for head in 0..heads {
        if plane == comptime!((head % planes) as u32) {
            make_query(buffers, q, row, head, comptime!(config.clone()));
        }
    }
    #[unroll]
    for s in 0..comptime!(config.stores.len()) {
        if makes_own && plane == comptime!(((heads + s) % planes) as u32) {
            make_own(buffers, row, s, comptime!(config.clone()));
        }
    }
    sync_buffers();
    if comptime!(config.shape.kv.is_blocks()) {
        turn_queries(q, config);
    }
}

/// Turns queries as keys in blocks are turned.
#[cube]
fn turn_queries(q: &Shared<[f32]>, #[comptime] config: RowAttentionConfig) {
    let dim = comptime!(config.shape.head_dim);
    rotate_shared(
        q,
        comptime!(dim / BLOCK),
        dim,
        comptime!(config.shape.group()),
        comptime!(config.team.units),
    );
    sync_cube();
}

/// What store `s` makes of the row for this cube's head: its key or its value.
#[cube]
fn make_own(
    buffers: &Buffers<'_>,
    row: u32,
    #[comptime] s: usize,
    #[comptime] config: RowAttentionConfig,
) {
    let results = Sequence::<f32>::new();
    let size = comptime!(config.stores[s].program.segment);
    let first = cube_of_heads(buffers, comptime!(config.shape)) / config.shape.shares * size;
    let factors = segment_factors(
        buffers,
        0u32,
        row,
        first,
        comptime!(config.stores[s].program.clone()),
        comptime!(config.team.of_plane()),
    );
    store_segment(
        buffers,
        &results,
        &factors,
        0u32,
        row,
        first,
        first + size,
        comptime!(config.stores[s].clone()),
        comptime!(config.team.of_plane()),
    );
}

/// Query `head` of the cube's.
#[cube]
fn make_query(
    buffers: &Buffers<'_>,
    q: &Shared<[f32]>,
    row: u32,
    #[comptime] head: usize,
    #[comptime] config: RowAttentionConfig,
) {
    let results = Sequence::<f32>::new();
    let dim = comptime!(config.shape.head_dim);
    let head = comptime!(head as u32);
    let group = comptime!(config.shape.group());
    let first = (cube_of_heads(buffers, comptime!(config.shape)) * group + head) * dim;
    let factors = segment_factors(
        buffers,
        0u32,
        row,
        first,
        comptime!(config.query.clone()),
        comptime!(config.team.of_plane()),
    );
    let own = place_in(comptime!(config.team.of_plane()));
    #[unroll]
    for i in 0..comptime!(dim.div_ceil(config.team.plane)) {
        let lane = own + comptime!(i * config.team.plane);
        let whole = comptime!((i + 1) * config.team.plane <= dim);
        if whole.runtime() || lane < dim {
            let value = evaluate(
                buffers,
                &results,
                &factors,
                0u32,
                row,
                first + lane,
                comptime!(config.query.clone()),
                comptime!(config.query.insts.len() - 1),
            );
            put(
                q,
                head * dim + lane,
                value * comptime!(config.shape.scale.get()),
            );
        }
    }
}
