//! Adapters' share of products with experts: `A x` of every product that some row's adapter changes, `B u` on a tile of one
//! expert's products while it is hot.
//!
//! Products come sorted by expert, an expert's by row; neighbours of one adapter are a group, as neighbouring rows are where
//! all rows take one matrix. Limits: no adapter scales an expert's inputs, see [`Site::grouped`](rusty_graph::Site).

use super::injection::{Group, Tile, share};
use super::low_rank;
use crate::cpu::context::Context;
use crate::cpu::experts::{Chosen, Experts};
use crate::cpu::quantize::InputRows;
use crate::cpu::row_tiles::Extent;
use rusty_graph::SiteId;

impl Experts {
    /// Neighbouring products with the same expert and adapter, in order, the parts of each together.
    pub(in crate::cpu) fn groups<'a>(&self, ctx: &Context<'a>, chosen: &Chosen) -> Vec<Group<'a>> {
        let mut groups = vec![];
        if !ctx.adapted || self.parts.iter().all(|part| part.sites.is_none()) {
            return groups;
        }
        let slot = |at: usize| ctx.slot(self.rows, chosen.pairs[at] as usize / self.used);
        for taken in &chosen.groups {
            let (mut next, end) = (taken.first, taken.first + taken.count);
            while next < end {
                let first = next;
                next += 1;
                while next < end && slot(next) == slot(first) {
                    next += 1;
                }
                for (part, code) in self.parts.iter().enumerate() {
                    let site = code.sites.map(|s| SiteId(s.0 + taken.expert as u32));
                    if let Some(delta) = ctx.slots.delta(slot(first), site) {
                        groups.push(Group {
                            part,
                            first,
                            rows: next - first,
                            delta,
                        });
                    }
                }
            }
        }
        groups
    }

    /// `A x` of all groups of the step's `pairs` of rows and experts, each thread for its share of the ranks.
    ///
    /// # Safety
    /// All threads call it with the same groups; inputs are filled in single precision, too.
    pub(in crate::cpu) unsafe fn reduce(
        &self,
        ctx: &Context<'_>,
        thread: usize,
        x: InputRows,
        groups: &[Group<'_>],
        pairs: usize,
    ) {
        let stride = ctx.slots.most_lows().grouped;
        for (group, ranks) in share(groups, thread, ctx.threads) {
            let place = group.part * pairs + group.first;
            let u = ctx.lows.floats().wrapping_add(place * stride);
            let (rows, u) = ((group.first, group.rows), (u, stride));
            // SAFETY: the caller's duty; ranks are disjoint between threads.
            unsafe { low_rank::reduce(ctx.level, group.delta, x, rows, ranks, u, None) };
        }
    }

    /// Adds the adapters' part to a tile of a part's products, columns from `column` on.
    ///
    /// # Safety
    /// The tile holds products, whose strip begins at a multiple of 32; all threads are done with [`Experts::reduce`].
    pub(in crate::cpu) unsafe fn expand(
        &self,
        ctx: &Context<'_>,
        groups: &[Group<'_>],
        part: usize,
        pairs: usize,
        (e, column): (Extent, usize),
    ) {
        let stride = ctx.slots.most_lows().grouped;
        let tile = Tile {
            first: e.first,
            rows: e.rows,
            column,
            columns: e.columns,
            stride: e.stride,
        };
        for (group, (first, rows)) in tile.groups(groups, part) {
            let u = ctx
                .lows
                .floats()
                .wrapping_add((part * pairs + first) * stride);
            let y = e.out.wrapping_add((first - e.first) * e.stride);
            let (u, y) = ((u.cast_const(), stride), (y, e.stride));
            // SAFETY: the caller's duty.
            unsafe { low_rank::expand(ctx.level, group.delta, rows, u, (column, e.columns), y) };
        }
    }
}
