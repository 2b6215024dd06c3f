//! The rows of a step, as an executable takes them.

use crate::sequence::Sequence;
use rusty_compiler::{SlotId, Step, Want, step};

/// See the module head.
#[derive(Default)]
pub(super) struct Batch<'a> {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    slots: Vec<SlotId>,
    wants: Vec<Want>,
    sequences: Vec<step::Sequence<'a>>,
}

impl<'a> Batch<'a> {
    /// Adds rows of a sequence from position `from` on, the last of which wants `last`.
    pub fn push(
        &mut self,
        sequence: &'a Sequence,
        slot: SlotId,
        from: usize,
        tokens: &[u32],
        last: Want,
    ) {
        let index = self.sequences.len() as u32;
        self.tokens.extend(tokens);
        self.positions
            .extend((from..from + tokens.len()).map(|p| p as u32));
        let rows = self.tokens.len();
        self.sequence_of.resize(rows, index);
        self.slots.resize(rows, slot);
        self.wants.resize(rows, Want::Nothing);
        if let Some(want) = self.wants.last_mut() {
            *want = last;
        }
        self.sequences.push(step::Sequence {
            pages: &sequence.pages,
            rope_length: sequence.rope_length,
        });
    }

    /// The step.
    pub fn step(&self) -> Step<'_> {
        Step {
            tokens: &self.tokens,
            positions: &self.positions,
            sequence_of: &self.sequence_of,
            sequences: &self.sequences,
            slots: &self.slots,
            wants: &self.wants,
        }
    }
}
