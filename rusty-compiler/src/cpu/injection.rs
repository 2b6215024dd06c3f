//! An adapter's share of a contraction: scaled inputs, `A x` before the tiles, `B u` on a tile while it is hot.

use super::context::Context;
use super::contract::{Contract, PartCode};
use super::low_rank;
use super::quantize::{Forms, InputRows, fill_row};
use super::simd::LANES;
use crate::slots::SiteDelta;
use std::sync::atomic::Ordering;

/// Rows of one part that share an adapter.
pub(super) struct Group<'a> {
    part: usize,
    first: usize,
    rows: usize,
    delta: &'a SiteDelta,
}

impl Contract {
    /// Own inputs for each part that some row's adapter scales.
    pub(super) fn gained(&self, ctx: &Context<'_>, rows: usize) -> Vec<Option<InputRows>> {
        let gains = |part: &PartCode| {
            (0..rows).any(|r| {
                let delta = ctx.slots.delta(ctx.slot(self.rows, r), part.site);
                delta.is_some_and(|d| d.gain_in.is_some())
            })
        };
        let parts = self.parts.iter().zip(ctx.gained);
        parts
            .map(|(part, inputs)| gains(part).then(|| inputs.rows(self.k)))
            .collect()
    }

    pub(super) unsafe fn fill_gained(
        &self,
        ctx: &Context<'_>,
        inputs: InputRows,
        part: usize,
        row: usize,
        x: *const f32,
    ) {
        let delta = ctx
            .slots
            .delta(ctx.slot(self.rows, row), self.parts[part].site);
        // SAFETY: the row's float inputs serve as the scaled copy before they are filled for good.
        unsafe {
            let mut from = x;
            if let Some(gain) = delta.and_then(|d| d.gain_in.as_ref()) {
                let to = inputs.float_row(row);
                for (i, g) in gain.iter().enumerate() {
                    *to.add(i) = g * *x.add(i);
                }
                from = to;
            }
            let same = std::ptr::eq(from, inputs.float_row(row));
            let forms = Forms {
                floats: self.forms.floats && !same,
                ..self.forms
            };
            if same {
                let padding = self.k.next_multiple_of(LANES) - self.k;
                std::ptr::write_bytes(inputs.float_row(row).add(self.k), 0, padding);
            }
            fill_row(ctx.level, inputs, row, from, self.k, forms);
        }
    }

    /// `A x` of every adapted row and part, each thread for its share of the ranks. Nobody waits for the others'
    /// here: the first tile is multiplied meanwhile.
    pub(super) unsafe fn reduce(
        &self,
        ctx: &Context<'_>,
        thread: usize,
        rows: usize,
        x: InputRows,
        groups: &[Group<'_>],
    ) {
        let stride = ctx.slots.largest_rank();
        let share = |delta: &SiteDelta| {
            let part = |t: usize| delta.rank as usize * t / ctx.threads;
            (part(thread), part(thread + 1))
        };
        for (i, group) in groups.iter().enumerate() {
            if let Some(next) = groups.get(i + 1) {
                low_rank::prefetch_ranks(next.delta, share(next.delta));
            }
            let at = (group.part * rows + group.first) * stride;
            let u = ctx.lows.floats().wrapping_add(at);
            let place = (group.first, group.rows);
            // SAFETY: inputs are filled; ranks are disjoint between threads.
            unsafe {
                let ranks = share(group.delta);
                low_rank::reduce(ctx.level, group.delta, x, place, ranks, u, stride);
            }
        }
        ctx.counters[self.counter + 1].fetch_add(1, Ordering::Release);
    }

    /// Neighbouring rows with the same adapter, part by part.
    pub(super) fn groups<'a>(&'a self, ctx: &'a Context<'_>, rows: usize) -> Vec<Group<'a>> {
        let part_groups = move |(part, code): (usize, &'a PartCode)| {
            let mut next = 0;
            std::iter::from_fn(move || {
                while next < rows {
                    let first = next;
                    let slot = ctx.slot(self.rows, first);
                    next += 1;
                    while next < rows && ctx.slot(self.rows, next) == slot {
                        next += 1;
                    }
                    if let Some(delta) = ctx.slots.delta(slot, code.site) {
                        let rows = next - first;
                        return Some(Group {
                            part,
                            first,
                            rows,
                            delta,
                        });
                    }
                }
                None
            })
        };
        self.parts
            .iter()
            .enumerate()
            .flat_map(part_groups)
            .collect()
    }

    /// Asks for what [`Contract::expand`] will read.
    pub(super) fn prefetch_expand(&self, groups: &[Group<'_>], part: usize, tile: Tile) {
        for (group, _) in tile.groups(groups, part) {
            low_rank::prefetch_columns(group.delta, tile.columns);
        }
    }

    /// Adds the adapters' part to a tile.
    pub(super) unsafe fn expand(
        &self,
        ctx: &Context<'_>,
        groups: &[Group<'_>],
        part: usize,
        tile: Tile,
        out: *mut f32,
    ) {
        let all = ctx.rows(self.rows);
        let stride = ctx.slots.largest_rank();
        for (group, (first, rows)) in tile.groups(groups, part) {
            let at = (part * all + first) * stride;
            let u = (ctx.lows.floats().wrapping_add(at).cast_const(), stride);
            let y = out.wrapping_add((first - tile.rows.0) * self.strip);
            // SAFETY: the strip starts at a multiple of 16 and its tile rows are whole vectors.
            unsafe {
                let y = (y, self.strip);
                low_rank::expand(ctx.level, group.delta, rows, u, tile.columns, y);
            }
        }
    }
}

/// Rows and columns of a tile, each as first and count.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) rows: (usize, usize),
    pub(super) columns: (usize, usize),
}

impl Tile {
    /// A part's groups with the rows of each that are in the tile, as first and count.
    fn groups<'a, 'b>(
        self,
        groups: &'b [Group<'a>],
        part: usize,
    ) -> impl Iterator<Item = (&'b Group<'a>, (usize, usize))> {
        let (start, end) = (self.rows.0, self.rows.0 + self.rows.1);
        groups.iter().filter_map(move |group| {
            let (from, to) = (group.first.max(start), (group.first + group.rows).min(end));
            (group.part == part && from < to).then(|| (group, (from, to - from)))
        })
    }
}
