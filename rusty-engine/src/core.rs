//! The engine's inner state, behind one lock: executable, pages and sequences. Whoever waits for a token
//! drives a step, and a step serves every sequence that has rows to run. What goes wrong with one sequence
//! alone is kept for its own reader.

use crate::generation::Sequence;
use crate::pages::PagePool;
use crate::scheduler::{Chunk, schedule};
use crate::{Error, Result};
use rusty_compiler::{Executable, RowResult, Sequence as StepSequence, SlotId, Step, Want};
use std::collections::BTreeMap;

pub(crate) struct Core {
    pub executable: Box<dyn Executable>,
    pub pool: PagePool,
    pub sequences: BTreeMap<u64, Sequence>,
    pub row_budget: usize,
    pub output_budget: usize,
    /// Names of attached adapters; index 0 is slot 1.
    pub slots: Vec<Option<String>>,
    next_sequence: u64,
    turn: usize,
}

impl Core {
    pub fn new(
        executable: Box<dyn Executable>,
        pages: u32,
        row_budget: usize,
        output_budget: usize,
        slots: u32,
    ) -> Self {
        Self {
            executable,
            pool: PagePool::new(pages),
            sequences: BTreeMap::new(),
            row_budget,
            output_budget,
            slots: vec![None; slots as usize],
            next_sequence: 0,
            turn: 0,
        }
    }

    pub fn open(&mut self) -> u64 {
        self.next_sequence += 1;
        self.sequences
            .insert(self.next_sequence, Sequence::default());
        self.next_sequence
    }

    pub fn close(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.pool.release(sequence.pages);
        }
    }

    pub fn sequence(&mut self, id: u64) -> Result<(&mut Sequence, &mut PagePool)> {
        let missing = || Error::Request("the session is closed".into());
        Ok((
            self.sequences.get_mut(&id).ok_or_else(missing)?,
            &mut self.pool,
        ))
    }

    /// Runs one step for everybody who has rows to run; false where nobody has.
    pub fn step(&mut self) -> Result<bool> {
        let ids: Vec<u64> = self.sequences.keys().copied().collect();
        let list: Vec<&Sequence> = self.sequences.values().collect();
        let chunks = schedule(&list, self.row_budget, self.output_budget, self.turn);
        self.turn = self.turn.wrapping_add(1);
        if chunks.is_empty() {
            return Ok(false);
        }
        let results = Batch::new(&list, &chunks).run(&mut *self.executable)?;
        let mut results = results.into_iter();
        for chunk in &chunks {
            let Some(sequence) = self.sequences.get_mut(&ids[chunk.sequence]) else {
                continue;
            };
            sequence.computed += chunk.rows;
            if chunk.last
                && let Some((_, result)) = results.next()
            {
                sequence.advance(result, &mut self.pool);
            }
        }
        Ok(true)
    }
}

/// The rows of a step, as the executable takes them.
struct Batch<'a> {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    slots: Vec<SlotId>,
    wants: Vec<Want>,
    sequences: Vec<StepSequence<'a>>,
}

impl<'a> Batch<'a> {
    fn new(list: &[&'a Sequence], chunks: &[Chunk]) -> Self {
        let mut batch = Self {
            tokens: vec![],
            positions: vec![],
            sequence_of: vec![],
            slots: vec![],
            wants: vec![],
            sequences: vec![],
        };
        for chunk in chunks {
            let sequence = list[chunk.sequence];
            let range = chunk.from..chunk.from + chunk.rows;
            batch.tokens.extend(&sequence.tokens[range.clone()]);
            batch.positions.extend(range.map(|p| p as u32));
            let index = batch.sequences.len() as u32;
            batch.sequence_of.resize(batch.tokens.len(), index);
            batch.slots.resize(batch.tokens.len(), sequence.slot);
            batch.wants.resize(batch.tokens.len(), Want::Nothing);
            if chunk.last {
                *batch.wants.last_mut().expect("a chunk has rows") = sequence.want();
            }
            batch.sequences.push(StepSequence {
                pages: &sequence.pages,
                rope_length: sequence.rope_length,
            });
        }
        batch
    }

    fn run(&self, executable: &mut dyn Executable) -> Result<Vec<(u32, RowResult)>> {
        let output = executable.run(&Step {
            tokens: &self.tokens,
            positions: &self.positions,
            sequence_of: &self.sequence_of,
            sequences: &self.sequences,
            slots: &self.slots,
            wants: &self.wants,
        })?;
        Ok(output.results)
    }
}
