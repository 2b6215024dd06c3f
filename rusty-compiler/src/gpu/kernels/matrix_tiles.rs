//! What the kernel on [matrix units](super::matrix) holds in shared memory: inputs and dequantized weights in bf16, and the norm
//! factors of its rows.

use super::body::evaluate;
use super::contract::{UnitConfig, tile_input};
use super::decode::{RUN, decode_run};
use super::env::{Buffers, put};
use super::fragments::packed;
use super::matrix::{DEPTH, MatrixConfig, STRIDE};
use super::matrix_product::UNITS;
use cubecl::prelude::*;

/// The norm factor of each row of the tile; a plane makes one row at a time.
#[cube]
pub fn tile_norms(
    buffers: &Buffers<'_>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    #[comptime] config: MatrixConfig,
) {
    let none = Sequence::<f32>::new();
    let program = comptime!(config.contract.prologue.clone());
    let (x, eps) = comptime!(program.norm(program.reductions()[0]));
    let plane = comptime!(config.contract.team.plane);
    let mut m = UNIT_POS / plane;
    while m < config.tile.rows {
        let at = min(row + m, count - 1);
        let mut sum = 0.0f32;
        let mut lane = UNIT_POS % plane;
        while lane < config.contract.k {
            let value = evaluate(
                buffers,
                &none,
                &none,
                0u32,
                at,
                lane,
                comptime!(program.clone()),
                x,
            );
            sum += value * value;
            lane += plane;
        }
        let total = plane_sum(sum);
        if UNIT_POS.is_multiple_of(plane) {
            put(
                norms,
                m,
                (total / comptime!(config.contract.k as f32) + eps).inverse_sqrt(),
            );
        }
        m += comptime!(UNITS / plane);
    }
    sync_cube();
}

/// The weights of part `p` from `depth` on; lanes behind the last repeat it, elements past the row's end are zero.
#[cube]
pub fn load_weights(
    buffers: &Buffers<'_>,
    w_tile: &Shared<[u32]>,
    first: u32,
    depth: u32,
    #[comptime] p: usize,
    #[comptime] config: MatrixConfig,
    #[comptime] unit: UnitConfig,
) {
    let part = comptime!(config.contract.parts[unit.parts[p]]);
    let lanes = comptime!(config.tile.lanes);
    let before = comptime!(p as u32 * config.tile.lanes);
    let own = first - buffers.args[comptime!(unit.arg)];
    let start = buffers.args[comptime!(part.arg)] + own * comptime!(part.row_bytes);
    let last = buffers.args[comptime!(unit.arg + 1)] - first - 1;
    if comptime!(config.by_words(unit.parts[p])) {
        let mut at = UNIT_POS;
        while at < comptime!(lanes * DEPTH / 2) {
            let (lane, word) = (at / (DEPTH / 2), at % (DEPTH / 2));
            let address = start + min(lane, last) * comptime!(part.row_bytes) + depth * 2;
            let value = buffers.weights[(address / 4 + word) as usize];
            put(w_tile, (before + lane) * STRIDE + word, value);
            at += UNITS;
        }
    } else if UNIT_POS < comptime!(lanes * DEPTH / RUN as u32) {
        let lane = UNIT_POS % lanes;
        let piece = UNIT_POS / lanes;
        let run = depth / RUN as u32 + piece;
        let mut decoded = Array::<f32>::new(RUN);
        if run < comptime!(config.contract.k.div_ceil(RUN as u32)) {
            decode_run(
                buffers,
                start + min(lane, last) * comptime!(part.row_bytes),
                run,
                &mut decoded,
                comptime!(part.format),
                comptime!(config.contract.k),
            );
        }
        let to = (before + lane) * STRIDE + piece * comptime!(RUN as u32 / 2);
        #[unroll]
        for i in 0..comptime!(RUN / 2) {
            let (low, high) = (decoded[comptime!(i * 2)], decoded[comptime!(i * 2 + 1)]);
            put(
                w_tile,
                to + i as u32,
                packed(low, high, comptime!(config.halves())),
            );
        }
    }
}

/// The inputs of part `p`, which is the contraction's part `part`, from `depth` on; zero past the row's end.
#[cube]
pub fn load_inputs(
    buffers: &Buffers<'_>,
    x_tile: &Shared<[u32]>,
    norms: &Shared<[f32]>,
    count: u32,
    row: u32,
    depth: u32,
    #[comptime] p: usize,
    #[comptime] part: usize,
    #[comptime] config: MatrixConfig,
) {
    let before = comptime!(p as u32 * config.tile.rows);
    let mut at = UNIT_POS;
    while at < comptime!(config.tile.rows * DEPTH / 2) {
        let (m, word) = (at / (DEPTH / 2), at % (DEPTH / 2));
        let own = min(row + m, count - 1);
        let lane = depth + word * 2;
        let low = tile_input(
            buffers,
            norms,
            m,
            own,
            lane,
            part,
            comptime!(config.contract.clone()),
        );
        let high = tile_input(
            buffers,
            norms,
            m,
            own,
            lane + 1,
            part,
            comptime!(config.contract.clone()),
        );
        let value = packed(low, high, comptime!(config.halves()));
        put(x_tile, (before + m) * STRIDE + word, value);
        at += UNITS;
    }
}
