//! An executable for tests: it remembers what its slots read, forgets what they copy, and answers every row with its own token. It may
//! take steps ahead.

use rusty_backend::Error as DeviceError;
use rusty_compiler::{
    Executable, KvPrefix, MemoryUse, Result, RowResult, SlotData, SlotId, Step, StepOutput,
    StepQueue, Want, chosen,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// What a row had: the token, and the name of what was in its slot.
pub(crate) type Row = (u32, String);

/// See the module head.
#[derive(Default)]
pub(crate) struct Echo {
    pub filled: BTreeMap<SlotId, Arc<SlotData>>,
    pub attached: usize,
    pub copies: bool,
    /// Adapters for which there is memory; as many as there are slots where it does not say.
    pub room: Option<usize>,
    /// The rows of all steps.
    pub steps: Arc<Mutex<Vec<Vec<Row>>>>,
    /// Whether it takes steps ahead.
    pub queues: bool,
    /// Results of the steps under way.
    pub under_way: VecDeque<StepOutput>,
    /// What the last step chose.
    pub chosen: Vec<u32>,
}

impl Echo {
    /// The token of a row, which may be one that the step before chose.
    fn token(&self, token: u32) -> u32 {
        let place = token.checked_sub(chosen(0));
        place.map_or(token, |place| self.chosen[place as usize])
    }
}

impl Executable for Echo {
    fn run(&mut self, step: &Step<'_>) -> Result<StepOutput> {
        assert!(self.under_way.is_empty(), "other steps are under way");
        let name = |slot: &SlotId| match *slot {
            SlotId::BASE => "base".to_string(),
            slot => self.filled[&slot].name.clone(),
        };
        let tokens: Vec<u32> = step.tokens.iter().map(|token| self.token(*token)).collect();
        let rows = tokens.iter().zip(step.slots);
        let rows = rows.map(|(token, slot)| (*token, name(slot))).collect();
        self.steps.lock().expect("steps").push(rows);
        let wanted = step.wants.iter().zip(&tokens).enumerate();
        let wanted = wanted.filter(|(_, (want, _))| **want != Want::Nothing);
        let results = wanted.map(|(row, (_, token))| (row as u32, *token));
        let results: Vec<(u32, u32)> = results.collect();
        self.chosen = results.iter().map(|(_, token)| *token).collect();
        let results = results
            .into_iter()
            .map(|(row, token)| (row, RowResult::Token(token)));
        Ok(StepOutput {
            results: results.collect(),
        })
    }

    fn attach(&mut self, slot: SlotId, data: Arc<SlotData>) -> Result<()> {
        if self.room.is_some_and(|room| self.filled.len() >= room) {
            return Err(DeviceError::OutOfMemory {
                device: "echo".into(),
                owner: "adapters".into(),
                asked: 1,
                used: 0,
                limit: 0,
            }
            .into());
        }
        self.attached += 1;
        if !self.copies {
            self.filled.insert(slot, data);
        }
        Ok(())
    }

    fn detach(&mut self, slot: SlotId) -> Result<()> {
        self.filled.remove(&slot);
        Ok(())
    }

    fn write_prefix(&mut self, _: &[u32], _: &KvPrefix) -> Result<()> {
        Ok(())
    }

    fn copy_page(&mut self, _: u32, _: u32) -> Result<()> {
        Ok(())
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::default()
    }

    fn copies_tables(&self) -> bool {
        self.copies
    }

    fn compiled_kernels(&self) -> usize {
        0
    }

    fn queue(&mut self) -> Option<&mut dyn StepQueue> {
        self.queues.then_some(self)
    }
}

impl StepQueue for Echo {
    fn enqueue(&mut self, step: &Step<'_>) -> Result<()> {
        let before = std::mem::take(&mut self.under_way);
        let output = self.run(step)?;
        self.under_way = before;
        self.under_way.push_back(output);
        Ok(())
    }

    fn finish(&mut self) -> Result<StepOutput> {
        let nothing = || rusty_compiler::Error::Step("nothing is enqueued".into());
        self.under_way.pop_front().ok_or_else(nothing)
    }
}
