//! An adapter's share of a contraction: scaled inputs, `A x` before the tiles, `B u` on a tile while it is hot.

use super::low_rank;
use super::site_tables::SiteTables;
use crate::cpu::context::{Context, RowSet};
use crate::cpu::contract::Contract;
use crate::cpu::prefetch::{Ahead, ask_for};
use crate::cpu::quantize::{InputForms, InputRows, fill_row};
use crate::cpu::simd::LANES;
use crate::interleaving::QUARTET;
use rusty_graph::SiteId;

/// Where a kernel's rows may be adapted: its rows and the site of each part.
#[derive(Clone)]
pub(in crate::cpu) struct Sites {
    pub(in crate::cpu) rows: RowSet,
    pub(in crate::cpu) parts: Vec<Option<SiteId>>,
}

impl Sites {
    /// Neighbouring rows with the same adapter, row by row, the parts of each together.
    pub(in crate::cpu) fn groups<'a>(&self, ctx: &Context<'a>) -> Vec<Group<'a>> {
        let rows = ctx.rows(self.rows);
        let mut groups = vec![];
        let mut next = 0;
        while next < rows {
            let first = next;
            let slot = ctx.slot(self.rows, first);
            next += 1;
            while next < rows && ctx.slot(self.rows, next) == slot {
                next += 1;
            }
            for (part, site) in self.parts.iter().enumerate() {
                if let Some(delta) = ctx.slots.delta(slot, *site) {
                    groups.push(Group {
                        part,
                        first,
                        rows: next - first,
                        delta,
                    });
                }
            }
        }
        groups
    }
}

/// The groups of which a thread computes `A x`, with the ranks of each, from and to: an even part of the dot
/// products, cut through few groups and between whole quartets, so that threads neither share lines of results nor
/// tables. As groups come by row, a thread mostly reads inputs that it filled itself.
pub(super) fn share<'a, 'b>(
    groups: &'b [Group<'a>],
    thread: usize,
    threads: usize,
) -> impl Iterator<Item = (&'b Group<'a>, (usize, usize))> {
    let all: usize = groups.iter().map(|g| g.delta.rank * g.rows).sum();
    let (start, end) = (all * thread / threads, all * (thread + 1) / threads);
    let mut before = 0;
    groups.iter().filter_map(move |group| {
        let rank = |at: usize| {
            at.saturating_sub(before)
                .div_ceil(group.rows)
                .next_multiple_of(QUARTET)
                .min(group.delta.rank)
        };
        let (from, to) = (rank(start), rank(end));
        before += group.delta.rank * group.rows;
        (from < to).then_some((group, (from, to)))
    })
}

/// Rows of one part that share an adapter.
pub(in crate::cpu) struct Group<'a> {
    pub(super) part: usize,
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) delta: &'a SiteTables,
}

impl InputForms {
    /// With single precision where some group's `A` acts on that.
    pub(in crate::cpu) fn for_groups(self, groups: &[Group<'_>]) -> Self {
        let reads = |group: &Group<'_>| !self.quantized() || group.delta.reads_floats();
        self.with_floats(self.floats || groups.iter().any(reads))
    }
}

impl Contract {
    /// Own inputs for each part that some row's adapter scales.
    pub(in crate::cpu) fn gained(&self, ctx: &Context<'_>, rows: usize) -> Vec<Option<InputRows>> {
        let gains = |site: &Option<SiteId>| {
            (0..rows).any(|r| {
                let delta = ctx.slots.delta(ctx.slot(self.rows, r), *site);
                delta.is_some_and(SiteTables::gains_input)
            })
        };
        let parts = self.sites.parts.iter().zip(ctx.gained);
        parts
            .map(|(site, inputs)| gains(site).then(|| inputs.rows(self.k, self.forms)))
            .collect()
    }

    pub(in crate::cpu) unsafe fn fill_gained(
        &self,
        ctx: &Context<'_>,
        inputs: InputRows,
        part: usize,
        row: usize,
        x: *const f32,
    ) {
        let delta = ctx
            .slots
            .delta(ctx.slot(self.rows, row), self.sites.parts[part]);
        // SAFETY: the row's float inputs serve as the scaled copy before they are filled for good.
        unsafe {
            let mut from = x;
            if let Some(delta) = delta.filter(|d| !d.gain_in.is_null()) {
                let to = inputs.float_row(row);
                for i in 0..self.k {
                    *to.add(i) = *delta.gain_in.add(i) * *x.add(i);
                }
                from = to;
            }
            let same = std::ptr::eq(from, inputs.float_row(row));
            let forms = self.forms.with_floats(self.forms.floats && !same);
            if same {
                let padding = self.k.next_multiple_of(LANES) - self.k;
                std::ptr::write_bytes(inputs.float_row(row).add(self.k), 0, padding);
            }
            fill_row(ctx.level, inputs, row, from, self.k, forms);
        }
    }

    /// `A x` of every adapted row and part, each thread for its share of the ranks. Nobody waits for the others'
    /// here: the first tile is multiplied meanwhile. Tables are short and follow each other anywhere in memory, so the
    /// next is asked for while one is read.
    pub(in crate::cpu) unsafe fn reduce(
        &self,
        ctx: &Context<'_>,
        thread: usize,
        x: InputRows,
        groups: &[Group<'_>],
    ) {
        let (rows, stride) = (ctx.rows(self.rows), ctx.slots.most_lows().contracts);
        let mut shares = share(groups, thread, ctx.threads).peekable();
        while let Some((group, ranks)) = shares.next() {
            let next = shares
                .peek()
                .and_then(|(g, ranks)| g.delta.rank_at(ranks.0));
            let distance = next
                .zip(group.delta.rank_at(ranks.0))
                .map(|(next, at)| next.wrapping_sub(at).cast_signed());
            let at = (group.part * rows + group.first) * stride;
            let u = ctx.lows.floats().wrapping_add(at);
            let place = (group.first, group.rows);
            // SAFETY: inputs are filled; ranks are disjoint between threads.
            unsafe {
                low_rank::reduce(
                    ctx.level,
                    group.delta,
                    x,
                    place,
                    ranks,
                    (u, stride),
                    distance,
                );
            }
        }
        ctx.barrier.arrive(&ctx.counters[self.counter + 1]);
    }

    /// Has what [`Contract::reduce`] of the contraction that follows will read asked for in the course of so many units of this
    /// thread's work.
    pub(in crate::cpu) fn await_reduce(
        &self,
        ctx: &Context<'_>,
        thread: usize,
        work: usize,
        ahead: &mut Ahead,
    ) {
        let groups = match &self.next {
            Some(next) => next.sites.groups(ctx),
            None => vec![],
        };
        let shares = share(&groups, thread, ctx.threads);
        let bytes = shares.filter_map(|(group, ranks)| group.delta.rank_bytes(ranks));
        ahead.set_later(bytes, work);
    }

    /// Adds the adapters' part to a tile.
    pub(in crate::cpu) unsafe fn expand(
        &self,
        ctx: &Context<'_>,
        groups: &[Group<'_>],
        part: usize,
        tile: Tile,
        out: *mut f32,
    ) {
        let all = ctx.rows(self.rows);
        let stride = ctx.slots.most_lows().contracts;
        let columns = (tile.column, tile.columns);
        let low = |row: usize| ctx.lows.floats().wrapping_add((part * all + row) * stride);
        // Half of them another thread has just written; each would be waited for when its turn comes.
        for (_, (first, _)) in tile.groups(groups, part) {
            ask_for(low(first).addr());
        }
        for (group, (first, rows)) in tile.groups(groups, part) {
            let u = (low(first).cast_const(), stride);
            let y = out.wrapping_add((first - tile.first) * tile.stride);
            // SAFETY: the tile starts at a multiple of 32 columns, and a part's room is wider than its widest row, in whole vectors.
            unsafe {
                let y = (y, tile.stride);
                low_rank::expand(ctx.level, group.delta, rows, u, columns, y);
            }
        }
    }
}

/// Has what [`Contract::expand`] will read for a part asked for during the coming product.
pub(in crate::cpu) fn expect_expand(
    groups: &[Group<'_>],
    part: usize,
    tile: Tile,
    ahead: &mut Ahead,
) {
    let columns = (tile.column, tile.columns);
    for (group, _) in tile.groups(groups, part) {
        ahead.push_due(group.delta.column_bytes(columns));
    }
}

/// Rows and columns of a tile.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Tile {
    /// First row, and how many there are.
    pub(in crate::cpu) first: usize,
    pub(in crate::cpu) rows: usize,
    /// First column of the matrix, and how many there are.
    pub(in crate::cpu) column: usize,
    pub(in crate::cpu) columns: usize,
    /// Results from one row to the next.
    pub(in crate::cpu) stride: usize,
}

impl Tile {
    /// A part's groups (all come by row) with the rows of each that are in the tile, as first and count.
    pub(super) fn groups<'a, 'b>(
        self,
        groups: &'b [Group<'a>],
        part: usize,
    ) -> impl Iterator<Item = (&'b Group<'a>, (usize, usize))> {
        let (start, end) = (self.first, self.first + self.rows);
        let groups = &groups[groups.partition_point(|g| g.first + g.rows <= start)..];
        let groups = groups.iter().take_while(move |g| g.first < end);
        groups.filter(move |g| g.part == part).map(move |group| {
            let (from, to) = (group.first.max(start), (group.first + group.rows).min(end));
            (group, (from, to - from))
        })
    }
}
