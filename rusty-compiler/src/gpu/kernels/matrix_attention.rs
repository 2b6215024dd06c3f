//! [Attention of tiles of rows](super::attention) on matrix units (FlashAttention-2, arXiv 2307.08691): a cube takes a tile of queries,
//! rows by heads of a key/value head, and steps over the keys with the running softmax.
//!
//! Each plane has queries of its own: their scores stay in its units' registers, become the softmax's weights there, and are the left
//! fragments of the product with the values. Planes share the step's keys and values in shared memory, where values come while scores
//! are made, and the next step's keys while values are weighed. Values too wide for a unit's registers are cut among planes side by side,
//! which make the scores of their queries each for itself.
//!
//! Keys and values are multiplied as they are stored, in half precision or bf16; queries and the softmax's weights are
//! rounded to the same. What is stored in [blocks](super::matrix_attention_blocks) is multiplied in half precision. Pages in single
//! precision, which are asked for to round nothing, and heads that do not fit are for the kernel in single precision.

use super::async_copies::{await_copies, close_copies};
use super::attention_shape::{AttentionShape, cube_of_heads, first_key, position_of};
use super::contract::{UnitConfig, store_unit};
use super::env::{Buffers, bound, header, put};
use super::fragments::{Halves, PLANE, exchange_words};
use super::matrix_attention_loads::{CubeMemory, load_keys, load_queries, load_values, locate};
use super::matrix_attention_softmax::{Running, finish_sums, score, soften, weigh};
use super::matrix_product::{MatrixTile, Product, UNITS};
use super::page_words::{BLOCK, PageWords};
use cubecl::prelude::*;

/// Words that keep fragments of neighbouring rows in different banks.
const APART: u32 = 4;

/// How a cube's planes share its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixAttentionCut {
    /// Fragments of 16 queries of a plane.
    pub below: u32,
    /// Planes side by side, which share the values' lanes: 1, 2 or 4.
    pub across: u32,
    /// Keys of a step, a multiple of 16.
    pub keys: u32,
}

/// What the kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatrixAttentionConfig {
    /// The cut.
    pub cut: MatrixAttentionCut,
    /// The attention.
    pub shape: AttentionShape,
    /// Scalar: arena word of the queries.
    pub arg: usize,
    /// Tails, over the one result.
    pub unit: UnitConfig,
    /// Whether the language has the instruction.
    pub native: bool,
}

impl MatrixAttentionConfig {
    /// Queries of a cube.
    pub fn queries(&self) -> u32 {
        UNITS / PLANE / self.cut.across * self.cut.below * 16
    }

    /// Query rows of a tile.
    pub fn rows(&self) -> u32 {
        self.queries() / self.shape.group()
    }

    /// Whether heads are cut into whole fragments, and what pages hold becomes 16-bit floats.
    pub fn is_whole(&self) -> bool {
        let (keys, values) = (self.shape.head_dim, self.shape.value_dim);
        self.rows() > 0
            && keys.is_multiple_of(16)
            && values.is_multiple_of(8 * self.cut.across)
            && match self.shape.kv {
                PageWords::F32 => false,
                PageWords::F16 | PageWords::Bf16 => true,
                PageWords::Codes(_) => {
                    keys.is_multiple_of(BLOCK) && values.is_multiple_of(BLOCK * self.cut.across)
                }
            }
    }

    /// What fragments hold.
    pub fn halves(&self) -> Halves {
        Halves {
            f16: self.shape.kv != PageWords::Bf16,
            native: self.native,
        }
    }

    /// Whether pages come to shared memory as they lie, by copies that nobody waits for at once.
    pub fn copies(&self) -> bool {
        self.native && !self.shape.kv.is_blocks()
    }

    /// Words from one query, key or value in shared memory to the next.
    pub fn stride(&self) -> u32 {
        self.shape.head_dim.max(self.shape.value_dim) / 2 + APART
    }

    /// First row in shared memory of the values: behind the keys, where they are not lanes of those.
    pub fn values_from(&self) -> u32 {
        let keys = self.queries();
        if self.shape.of_keys {
            keys
        } else {
            keys + self.cut.keys
        }
    }

    /// The scores of a plane's queries: it has all keys.
    pub fn scores(&self) -> Product {
        let below = self.cut.below as usize;
        Product {
            tile: MatrixTile {
                rows: UNITS / PLANE * 16 * self.cut.below,
                lanes: self.cut.keys,
                below,
            },
            left: (0, self.stride()),
            right: (self.queries(), self.stride()),
            turned: false,
            depth: self.shape.head_dim,
            at: 0,
            halves: self.halves(),
        }
    }

    /// Queries by lanes of values.
    pub fn result(&self) -> Product {
        Product {
            tile: MatrixTile {
                rows: self.queries(),
                lanes: self.shape.value_dim,
                below: self.cut.below as usize,
            },
            left: (0, 0),
            right: (self.values_from(), self.stride()),
            turned: true,
            depth: self.cut.keys,
            at: 0,
            halves: self.halves(),
        }
    }

    /// Words of the queries, keys and values; the result lies there, too.
    pub fn tile_words(&self) -> usize {
        let rows = self.values_from() + self.cut.keys;
        (rows * self.stride()).max(self.queries() * self.shape.value_dim) as usize
    }

    /// Words of what stands for matrix units.
    pub fn exchange_words(&self) -> usize {
        match self.native {
            true => 1,
            false => {
                let most = self.scores().tile.fragments();
                let most = most.max(self.result().tile.fragments());
                exchange_words(UNITS, most)
            }
        }
    }

    /// Floats of a unit's sums and scores.
    pub fn registers(&self) -> usize {
        self.result().tile.sums() + self.scores().tile.sums()
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        let words = self.tile_words() + self.exchange_words();
        4 * (words as u32 + 2 * self.cut.keys)
    }
}

/// Cubes: `(tiles, key/value heads times shares)`.
#[cube(launch_unchecked)]
pub fn matrix_attention(
    weights: &[u32],
    arena: &[f32],
    vectors: &[f32],
    step: &[u32],
    words: &[u32],
    pool: &[u32],
    args: Sequence<u32>,
    #[comptime] config: MatrixAttentionConfig,
) {
    let buffers = bound(weights, arena, vectors, step, words, pool, args);
    // The last tiles see most keys: they begin first.
    let tile = buffers.step[header::TILES] + from_last(CUBE_POS_X, CUBE_COUNT_X) * 2;
    let first = buffers.step[tile as usize];
    let rows = buffers.step[(tile + 1) as usize];
    let memory = CubeMemory::new(comptime!(config.clone()));
    if rows > 0 {
        attend(&buffers, &memory, first, rows, config);
    }
}

#[cube]
fn from_last(number: u32, count: u32) -> u32 {
    count - 1 - number
}

#[cube]
fn attend(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    first: u32,
    rows: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let shape = comptime!(config.shape);
    let lowest = position_of(buffers, first);
    let end = position_of(buffers, first + rows - 1) + 1;
    let pages = buffers.step[(buffers.step[header::PAGES] + first) as usize];
    let mut key = first_key(lowest, shape);
    let mut turn = 0u32;
    load_queries(buffers, memory, first, rows, comptime!(config.clone()));
    locate(
        buffers,
        memory,
        pages,
        key,
        end,
        turn,
        comptime!(config.clone()),
    );
    sync_cube();
    load_next(buffers, memory, key < end, turn, comptime!(config.clone()));
    let mut running = Running::new(comptime!(config.clone()));
    while key < end {
        let next = key + config.cut.keys;
        locate(
            buffers,
            memory,
            pages,
            next,
            end,
            1 - turn,
            comptime!(config.clone()),
        );
        if comptime!(!shape.of_keys) {
            load_values(buffers, memory, turn, comptime!(config.clone()));
        }
        // Groups that may be under way are the values', and later those of the next keys.
        await_tile(
            comptime!(config.copies()),
            comptime!(!shape.of_keys as usize),
        );
        score(
            memory,
            &mut running,
            lowest,
            rows,
            key,
            comptime!(config.clone()),
        );
        if comptime!(!shape.of_keys) {
            sync_cube();
            load_next(
                buffers,
                memory,
                next < end,
                1 - turn,
                comptime!(config.clone()),
            );
        }
        soften(&mut running, comptime!(config.clone()));
        if comptime!(!shape.of_keys) {
            await_tile(comptime!(config.copies()), 1usize);
        }
        weigh(memory, &mut running, comptime!(config.clone()));
        sync_cube();
        if comptime!(shape.of_keys) {
            load_next(
                buffers,
                memory,
                next < end,
                1 - turn,
                comptime!(config.clone()),
            );
        }
        key = next;
        turn = 1 - turn;
    }
    finish_sums(&mut running, comptime!(config.clone()));
    store(buffers, memory, &running, first, rows, config);
}

/// Loads the next step's keys where there is one. Without, too, a group of copies is closed, which the next wait counts.
#[cube]
fn load_next(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    more: bool,
    turn: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    if more {
        load_keys(buffers, memory, turn, comptime!(config.clone()));
    }
    if comptime!(config.copies()) {
        close_copies();
    }
}

/// Waits until all units' copies are there but for the last `but` groups of each.
#[cube]
fn await_tile(#[comptime] copies: bool, #[comptime] but: usize) {
    if comptime!(copies) {
        await_copies(but);
    }
    sync_cube();
}

/// Stores what the tails make of the weighted values.
#[cube]
fn store(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    running: &Running,
    first: u32,
    rows: u32,
    #[comptime] config: MatrixAttentionConfig,
) {
    let group = comptime!(config.shape.group());
    let dim = comptime!(config.shape.value_dim);
    let end = comptime!(config.shape.heads * config.shape.value_dim).runtime();
    let tile = comptime!(config.result().tile);
    let plane = UNIT_POS / PLANE;
    let own = plane / tile.across() * tile.plane_rows() + UNIT_POS % PLANE / 4;
    let lanes = plane % tile.across() * tile.plane_lanes() + UNIT_POS % 4 * 2;
    #[unroll]
    for i in 0..comptime!(tile.sums()) {
        let (m, n, half, side) = comptime!((
            i / 4 / tile.fragments(),
            i / 4 % tile.fragments(),
            i / 2 % 2,
            i % 2
        ));
        let query = own + comptime!((m * 16 + half * 8) as u32);
        let at = query * dim + lanes + comptime!((n * 8 + side) as u32);
        put(&memory.tiles, at, u32::reinterpret(running.sums[i]));
    }
    sync_cube();
    let mut task = UNIT_POS;
    while task < comptime!(config.queries() * config.shape.value_dim / 2) {
        let (query, lane) = (task / comptime!(dim / 2), task % comptime!(dim / 2) * 2);
        if query / group < rows {
            let mut products = Array::<f32>::new(2usize);
            #[unroll]
            for side in 0..2usize {
                let at = query * dim + lane + side as u32;
                products[side] = f32::reinterpret(memory.tiles[at as usize]);
            }
            store_unit(
                buffers,
                &products,
                first + query / group,
                (cube_of_heads(buffers, comptime!(config.shape)) * group + query % group) * dim
                    + lane,
                end,
                comptime!(config.unit.clone()),
                1usize,
            );
        }
        task += UNITS;
    }
}
