//! Units' parts of products with experts: of one of a row's experts, or of all of them by their weights, [in turn or side by
//! side](super::experts::Summing).

use super::env::Buffers;
use super::experts::{ExpertsConfig, FewExpertsConfig, Summing, scalar};
use super::gemv_place::Place;
use super::gemv_products::{add_block, add_products, make_segment, span_of};
use super::gemv_sums::{CubeMemory, total_at};
use super::reduce::no_sums;
use super::unit_lanes::Lanes;
use cubecl::prelude::*;

/// Each unit's part of a row's products from `place` on, one, or all by their weights. All units of the cube must call it together.
#[cube]
pub fn sum_in_turn(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    row: u32,
    place: u32,
    lanes: &Lanes,
    #[comptime] config: FewExpertsConfig,
) {
    let experts = comptime!(config.experts);
    let count = comptime!(config.product.sums(experts.parts as usize));
    for j in 0..comptime!(experts.used / config.results_per_row()) {
        let (own, weight) = expert_at(buffers, row, place + j, lanes, experts);
        let input = match comptime!(experts.inputs_per_row() > 1) {
            true => row * comptime!(experts.used) + place + j,
            false => row,
        };
        let span = span_of(input, &own, Sequence::new());
        let mut products = no_sums(count);
        let mut squares = no_sums(1usize);
        let product = comptime!(config.product.clone());
        let alike = comptime!(config.product.alike()[0].clone());
        add_products(
            buffers,
            memory,
            &mut products,
            &mut squares,
            &span,
            product,
            alike,
        );
        if comptime!(config.sums == Summing::InTurn) {
            // The next product's inputs take the place of this one's.
            sync_cube();
            #[unroll]
            for i in 0..count {
                sums[i] += products[i] * weight;
            }
        } else {
            #[unroll]
            for i in 0..count {
                sums[i] = products[i];
            }
        }
    }
}

/// Each unit's part of a row's products by their weights, of those of its team. All units of the cube must call it together.
#[cube]
pub fn sum_side_by_side(
    buffers: &Buffers<'_>,
    memory: &CubeMemory,
    sums: &mut Array<f32>,
    row: u32,
    lanes: &Lanes,
    #[comptime] config: FewExpertsConfig,
) {
    let experts = comptime!(config.experts);
    let segment = &memory.segment;
    let count = comptime!(config.product.sums(experts.parts as usize));
    let (words, held) = comptime!((
        config.product.all_segment_words(),
        config.product.segment() / config.product.block(),
    ));
    let mut squares = no_sums(1usize);
    for j in 0..comptime!(experts.used) {
        let span = span_of(row * comptime!(experts.used) + j, lanes, Sequence::new());
        let (blocks, product) = comptime!((held, config.product.clone()));
        make_segment(
            buffers,
            segment,
            &mut squares,
            &span,
            0u32,
            blocks.runtime(),
            j * words,
            product,
        );
    }
    sync_cube();
    let mut place = UNIT_POS / comptime!(config.product.team_units());
    while place < experts.used {
        let (own, weight) = expert_at(buffers, row, place, lanes, experts);
        let span = span_of(row, &own, Sequence::new());
        let mut products = no_sums(count);
        for b in 0..held {
            let at = Place {
                start: lanes.first,
                block: b,
            };
            let product = comptime!(config.product.clone());
            let alike = comptime!(config.product.alike()[0].clone());
            let of_segment = place * held + b;
            add_block(
                buffers,
                segment,
                &mut products,
                &span,
                &at,
                of_segment,
                product,
                alike,
            );
        }
        #[unroll]
        for i in 0..count {
            sums[i] += products[i] * weight;
        }
        place += comptime!(config.product.teams());
    }
}

/// The given lanes, which are the first expert's, of the expert at a place of a row, and its weight; of matrices of heads the place's.
#[cube]
fn expert_at(
    buffers: &Buffers<'_>,
    row: u32,
    place: u32,
    lanes: &Lanes,
    #[comptime] experts: ExpertsConfig,
) -> (Lanes, f32) {
    let routes = buffers.args[scalar::ROUTES] + row * comptime!(2 * experts.used);
    let expert = match comptime!(experts.routed) {
        true => u32::cast_from(buffers.arena[(routes + place) as usize]),
        false => place,
    };
    let mut weight = 1.0f32.runtime();
    if comptime!(experts.combine) {
        weight = buffers.arena[(routes + comptime!(experts.used) + place) as usize];
    }
    let own = lanes_of_expert(buffers, lanes, expert, comptime!(experts.parts as usize));
    (own, weight)
}

/// The same lanes of expert `expert`; those given are the first's.
#[cube]
fn lanes_of_expert(
    buffers: &Buffers<'_>,
    lanes: &Lanes,
    expert: u32,
    #[comptime] parts: usize,
) -> Lanes {
    let mut rows = Sequence::<u32>::new();
    #[unroll]
    for p in 0..parts {
        rows.push(lanes.rows[p] + expert * buffers.args[comptime!(scalar::stride(p))]);
    }
    Lanes {
        first: lanes.first,
        end: lanes.end,
        unit: lanes.unit,
        rows,
        parts: lanes.parts.clone(),
    }
}

/// The sum of a part at the cube's lane `local`.
#[cube]
pub fn total_of(
    memory: &CubeMemory,
    local: u32,
    #[comptime] config: FewExpertsConfig,
    #[comptime] p: usize,
) -> f32 {
    let (parts, own) = comptime!((config.experts.parts as usize, p as u32));
    let at = total_at(0u32, local, parts, comptime!(config.product.clone())) + own;
    let mut total = memory.totals[at as usize];
    if comptime!(config.sums == Summing::SideBySide) {
        let of_team = comptime!(config.product.sums(parts) as u32);
        for team in 1..comptime!(config.product.teams()) {
            total += memory.totals[(at + team * of_team) as usize];
        }
    }
    total
}
