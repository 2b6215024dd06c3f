//! The rows on which a kernel is tried: how many, where in their sequences, and which adapters they name.

use crate::gpu::kernels::rows::Origin;
use crate::gpu::stage::{Choice, Stage, When};
use crate::gpu::text::Kind;
use crate::plan::{Anchor, AttentionCut, Kernel, Plan};
use crate::{BindOptions, PAGE_TOKENS, Sequence, SlotId, Step, Want};
use std::ops::Range;

/// Rows beyond the fewest for which tiles are taken: no whole number of tiles.
const MORE_ROWS: u32 = 20;
/// Pages of the longest sequence at most.
const MOST_PAGES: u32 = 10;
/// The same where its keys are to be split among cubes.
const MOST_SPLIT_PAGES: u32 = 64;
/// Adapters that rows take turns with, beside none.
const ADAPTERS: u32 = 2;
/// Length that rotary frequencies are fixed for.
const ROPE_LENGTH: u32 = 200;

/// Rows of a step.
pub(super) struct TrialRows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    /// By sequence.
    pages: Vec<Vec<u32>>,
    slots: Vec<SlotId>,
    /// The first rows, which want no output where the kernel takes those that do.
    skipped: usize,
    /// The last rows, which are there to be beside the others.
    beside: usize,
    outputs: bool,
}

impl TrialRows {
    /// Rows on which a choice is tried, of one step each; none where there are too few pages. How steps of few pages or rows are cut may
    /// leave attention out.
    pub fn of_choice(
        plan: &Plan,
        (kernel, stage): (&Kernel, &Stage),
        choice: &Choice,
        options: &BindOptions,
    ) -> Vec<Self> {
        let (pages, budget) = (options.pages, plan.row_budget());
        let attends = matches!(kernel.anchor, Anchor::Attention { .. });
        let long = long(plan.tuning.attention);
        let all = match (stage.layer, choice.when) {
            (None, _) => [
                Some(Self::anywhere(
                    count(kernel, choice),
                    stage.selected,
                    budget,
                )),
                None,
            ],
            (Some(_), When::Alone) => [
                Self::apart(long, pages, budget),
                Self::beside(long, pages, budget),
            ],
            (Some(_), When::Decode(true)) => [Self::apart(MOST_PAGES, pages, budget), None],
            (Some(_), _) if attends => [
                Self::together(pages.min(MOST_PAGES), 3, MORE_ROWS as usize, budget),
                None,
            ],
            // Across two pages.
            (Some(_), _) => [Self::together(pages.min(2), 14, 3, budget), None],
        };
        let mut all: Vec<Self> = all.into_iter().flatten().collect();
        for rows in &mut all {
            rows.tokens = tokens(choice, rows.positions.len());
        }
        all
    }

    /// Rows that name adapters in turn, of a device with so many slots.
    pub fn adapted(mut self, slots: u32) -> Self {
        let adapters = ADAPTERS.min(slots);
        // A single row, which may be behind others, names one.
        for (slot, row) in self.slots.iter_mut().rev().zip(1..) {
            *slot = SlotId(row % (adapters + 1));
        }
        self
    }

    /// Rows that touch no page.
    fn anywhere(count: usize, outputs: bool, budget: usize) -> Self {
        let skipped = match outputs {
            true => 2.min(budget.saturating_sub(count)),
            false => 0,
        };
        let all = skipped + count;
        let pages = vec![0; (all + 3) / PAGE_TOKENS + 1];
        let mut rows = Self::of(vec![(0, 3..3 + all as u32)], vec![pages]);
        (rows.skipped, rows.outputs) = (skipped, outputs);
        rows
    }

    /// Two rows of sequences of their own, the one of up to `long` pages, or one where there are too few.
    fn apart(long: u32, pages: u32, budget: usize) -> Option<Self> {
        Self::of_two(long, pages, u32::from(budget > 1))
    }

    /// A row of a sequence of up to `long` pages, beside two of another, which see each other's keys.
    fn beside(long: u32, pages: u32, budget: usize) -> Option<Self> {
        let mut rows = Self::of_two(long, pages, 2).filter(|rows| rows.count() == 3)?;
        rows.beside = 2;
        (budget >= 3).then_some(rows)
    }

    /// A row of a long sequence, and others of a short one where there is a page for them.
    fn of_two(long: u32, pages: u32, others: u32) -> Option<Self> {
        let long = pages.saturating_sub(1).clamp(1, long.max(1));
        let last = (long * PAGE_TOKENS as u32).checked_sub(4)?;
        if pages == 0 {
            return None;
        }
        let mut runs = vec![(0, last..last + 1)];
        let mut lists = vec![(0..long).rev().collect()];
        if pages > long && others > 0 {
            runs.push((1, 5..5 + others));
            lists.push(vec![long]);
        }
        Some(Self::of(runs, lists))
    }

    /// Up to `count` rows of one sequence, the last of them `behind` before the end of its pages.
    fn together(pages: u32, behind: u32, count: usize, budget: usize) -> Option<Self> {
        let end = (pages * PAGE_TOKENS as u32).checked_sub(behind)?;
        let count = (count.min(budget) as u32).min(end);
        let run = (0, end - count..end);
        (count > 0).then(|| Self::of(vec![run], vec![(0..pages).rev().collect()]))
    }

    /// Runs of positions of sequences with these pages.
    fn of(runs: Vec<(u32, Range<u32>)>, pages: Vec<Vec<u32>>) -> Self {
        let each = runs
            .iter()
            .flat_map(|(s, run)| run.clone().map(move |p| (*s, p)));
        let (sequence_of, positions): (Vec<u32>, Vec<u32>) = each.unzip();
        Self {
            tokens: vec![0; positions.len()],
            slots: vec![SlotId::BASE; positions.len()],
            positions,
            sequence_of,
            pages,
            skipped: 0,
            beside: 0,
            outputs: false,
        }
    }

    /// Rows of the step.
    pub fn all(&self) -> usize {
        self.positions.len()
    }

    /// Rows that the kernel takes.
    pub fn count(&self) -> usize {
        self.all() - self.skipped
    }

    /// Rows of them that are compared, from the first on.
    pub fn compared(&self) -> usize {
        self.count() - self.beside
    }

    /// The step's row of one that the kernel takes.
    pub fn of_step(&self, row: usize) -> usize {
        self.skipped + row
    }

    /// Sequences.
    pub fn sequences(&self) -> usize {
        self.pages.len()
    }

    /// Tokens of a sequence, those in front of the step's among them.
    pub fn length(&self, sequence: usize) -> usize {
        let own = self.sequence_of.iter().zip(&self.positions);
        let own = own.filter(|(s, _)| **s as usize == sequence);
        own.map(|(_, p)| *p as usize + 1).max().unwrap_or(0)
    }

    /// Pages of a sequence.
    pub fn pages(&self, sequence: usize) -> &[u32] {
        &self.pages[sequence]
    }

    /// Token, sequence and position of a step's row.
    pub fn row(&self, of_step: usize) -> (u32, usize, u32) {
        let sequence = self.sequence_of[of_step] as usize;
        (self.tokens[of_step], sequence, self.positions[of_step])
    }

    /// Adapter of a step's row.
    pub fn slot(&self, of_step: usize) -> SlotId {
        self.slots[of_step]
    }

    /// The largest number of a slot.
    pub fn adapters(&self) -> u32 {
        self.slots.iter().map(|s| s.0).max().unwrap_or(0)
    }

    /// Table of `(cos, sin)` pairs of some of the step's rows.
    pub fn turns(&self, rope: &rusty_graph::RopeSpec, of_step: &[usize]) -> Vec<f32> {
        let positions: Vec<u32> = of_step.iter().map(|r| self.positions[*r]).collect();
        rope.table(&positions, ROPE_LENGTH)
    }

    /// What the rows' step gives.
    pub fn with_step<R>(&self, run: impl FnOnce(&Step<'_>) -> R) -> R {
        let sequence = |pages| Sequence {
            pages,
            rope_length: ROPE_LENGTH,
        };
        let sequences: Vec<Sequence<'_>> = self.pages.iter().map(|p| sequence(p)).collect();
        let want = |row| match self.outputs && row >= self.skipped {
            true => Want::ArgMax,
            false => Want::Nothing,
        };
        let wants: Vec<Want> = (0..self.all()).map(want).collect();
        run(&Step {
            tokens: &self.tokens,
            positions: &self.positions,
            sequence_of: &self.sequence_of,
            sequences: &sequences,
            slots: &self.slots,
            wants: &wants,
        })
    }
}

/// How many rows a kernel that touches no page is tried on.
fn count(kernel: &Kernel, choice: &Choice) -> usize {
    let most = match kernel.anchor {
        Anchor::Contract { .. } | Anchor::Experts { .. } => MORE_ROWS,
        _ => 2,
    };
    let (least, range) = (choice.rows.start(), choice.rows.end() - choice.rows.start());
    (least + most.min(range.div_ceil(2))) as usize
}

/// Tokens whose rows the first chunk of a table has.
fn tokens(choice: &Choice, count: usize) -> Vec<u32> {
    let held = choice.templates.first().and_then(|t| match &t.spec.kind {
        Kind::Rows(config) => match config.origin {
            Origin::Gather { arg, .. } => Some((t.scalars[arg + 1], t.scalars[arg + 2])),
            _ => None,
        },
        _ => None,
    });
    let (first, held) = held.unwrap_or((0, 1));
    let all = (0..count as u32).map(|i| first + (i * 37 + 11) % held.max(1));
    all.collect()
}

/// Pages of more keys than one split has.
fn long(cut: AttentionCut) -> u32 {
    let split = cut.split_keys / PAGE_TOKENS as u32;
    split.saturating_add(2).min(MOST_SPLIT_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Tuning;
    use rusty_backend::Target;

    /// Steps that an executable of so many pages takes; no two rows write the same place.
    #[test]
    fn rows_have_pages() {
        for pages in 0..14 {
            let made = [
                TrialRows::apart(MOST_PAGES, pages, 8),
                TrialRows::together(pages.min(MOST_PAGES), 3, 20, 64),
                TrialRows::together(pages.min(2), 14, 3, 64),
            ];
            assert!(made.iter().all(|m| m.is_some() == (pages > 0)), "{pages}");
            for rows in made.into_iter().flatten() {
                let mut places: Vec<(u32, u32)> = (0..rows.all())
                    .map(|row| {
                        let (_, sequence, position) = rows.row(row);
                        let page = rows.pages(sequence)[position as usize / PAGE_TOKENS];
                        assert!(page < pages);
                        (page, position % PAGE_TOKENS as u32)
                    })
                    .collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), rows.all());
            }
        }
        assert!(TrialRows::beside(10, 1, 8).is_none());
    }

    /// Keys of the long one are split, also beside rows that see each other's.
    #[test]
    fn rows_have_splits() {
        for name in ["h200", "m2"] {
            let cut = Tuning::guess(&Target::named(name).expect(name)).attention;
            let (long, keys) = (long(cut), cut.split_keys as usize);
            let rows = TrialRows::apart(long, long + 2, 8).expect("pages");
            assert!(rows.length(0) > keys && rows.count() == 2);
            let rows = TrialRows::beside(long, long + 2, 8).expect("pages");
            assert!(rows.length(0) > keys);
            assert_eq!((rows.count(), rows.compared()), (3, 1), "{name}");
        }
    }
}
