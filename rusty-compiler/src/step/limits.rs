//! Whether a step keeps to what an executable was bound for: kernels look at nothing that is checked here again.

use super::{CHOSEN, Step, Want};
use crate::{Error, PAGE_TOKENS, Result, SlotId};

/// What a step must keep to.
pub struct StepLimits<'a> {
    /// Most rows.
    pub rows: usize,
    /// Most rows that want an output.
    pub selected: usize,
    /// Entries of the vocabulary.
    pub vocab: u32,
    /// Tokens of the step before that rows may take.
    pub chosen: u32,
    /// KV pages.
    pub pages: u32,
    /// Adapter slots beside BASE.
    pub slots: u32,
    /// Embeddings of a soft prompt that a slot's adapter brings: their ids follow the vocabulary's.
    pub prompt_rows: &'a dyn Fn(SlotId) -> u32,
}

impl Step<'_> {
    /// Checks the step against what an executable was bound for.
    ///
    /// # Errors
    /// [`Error::Step`] with what does not fit.
    pub fn check(&self, limits: &StepLimits<'_>) -> Result<()> {
        let (max_rows, max_selected) = (limits.rows, limits.selected);
        let rows = self.rows();
        let fail = |m: String| Err(Error::Step(m));
        if rows == 0 || rows > max_rows {
            return fail(format!("{rows} rows; 1 to {max_rows} fit"));
        }
        let lens = [
            self.positions.len(),
            self.sequence_of.len(),
            self.slots.len(),
            self.wants.len(),
        ];
        if lens.iter().any(|&l| l != rows) {
            return fail(format!(
                "row slices of different lengths: {rows} tokens, {lens:?}"
            ));
        }
        let selected = self.wants.iter().filter(|w| **w != Want::Nothing).count();
        if selected > max_selected {
            return fail(format!(
                "{selected} rows want an output; {max_selected} fit"
            ));
        }
        self.check_rows(limits)?;
        self.check_writes()
    }

    /// Each row's token, place and slot.
    fn check_rows(&self, limits: &StepLimits<'_>) -> Result<()> {
        let (pages, slots) = (limits.pages, limits.slots);
        let fail = |m: String| Err(Error::Step(m));
        for row in 0..self.rows() {
            let (token, vocab) = (self.tokens[row], limits.vocab);
            if token >= CHOSEN {
                let (place, count) = (token - CHOSEN, limits.chosen);
                if place >= count {
                    return fail(format!(
                        "row {row} takes token {place} of the step before, which chose {count}"
                    ));
                }
            } else if token >= vocab && token - vocab >= (limits.prompt_rows)(self.slots[row]) {
                return fail(format!(
                    "token {token} is outside the vocabulary of {vocab}"
                ));
            }
            let Some(sequence) = self.sequences.get(self.sequence_of[row] as usize) else {
                return fail(format!(
                    "row {row} names sequence {}",
                    self.sequence_of[row]
                ));
            };
            let position = self.positions[row];
            let Some(used) = sequence.pages.get(..=position as usize / PAGE_TOKENS) else {
                return fail(format!("row {row} at position {position} has no page"));
            };
            let same = row > 0 && self.sequence_of[row] == self.sequence_of[row - 1];
            // Kernels read all of them unchecked. Rows in front of this one have looked at those before the last.
            let new = match same {
                true => &used[used.len() - 1..],
                false => used,
            };
            if let Some(page) = new.iter().find(|p| **p >= pages) {
                return fail(format!(
                    "row {row}'s sequence names page {page}; there are {pages}"
                ));
            }
            if self.slots[row].0 > slots {
                return fail(format!(
                    "row {row} names adapter slot {}; there are {slots}",
                    self.slots[row].0
                ));
            }
            if same && self.positions[row] != self.positions[row - 1] + 1 {
                return fail(format!(
                    "row {row}: positions of a sequence must ascend by one"
                ));
            }
        }
        Ok(())
    }

    /// Of two rows' keys and values in one place those of the last would stay, and threads decide which that is. Every row has
    /// a sequence and a page.
    fn check_writes(&self) -> Result<()> {
        let place = |row: usize| {
            let position = self.positions[row] as usize;
            let pages = self.sequences[self.sequence_of[row] as usize].pages;
            (pages[position / PAGE_TOKENS], position % PAGE_TOKENS)
        };
        let mut places: Vec<_> = (0..self.rows()).map(|row| (place(row), row)).collect();
        places.sort_unstable();
        for pair in places.windows(2) {
            let (((page, at), first), (other, second)) = (pair[0], pair[1]);
            if other == (page, at) {
                let what = format!("rows {first} and {second} both write row {at} of page {page}");
                return Err(Error::Step(what));
            }
        }
        Ok(())
    }
}
