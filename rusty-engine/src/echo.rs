//! An executable for tests: it remembers what its slots read, forgets what they copy, and answers every row with its own token.

use rusty_backend::Error as DeviceError;
use rusty_compiler::{
    Executable, KvPrefix, MemoryUse, Result, RowResult, SlotData, SlotId, Step, StepOutput, Want,
};
use std::collections::BTreeMap;
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
}

impl Executable for Echo {
    fn run(&mut self, step: &Step<'_>) -> Result<StepOutput> {
        let name = |slot: &SlotId| match *slot {
            SlotId::BASE => "base".to_string(),
            slot => self.filled[&slot].name.clone(),
        };
        let rows = step.tokens.iter().zip(step.slots);
        let rows = rows.map(|(token, slot)| (*token, name(slot))).collect();
        self.steps.lock().expect("steps").push(rows);
        let wanted = step.wants.iter().zip(step.tokens).enumerate();
        let wanted = wanted.filter(|(_, (want, _))| **want != Want::Nothing);
        let results = wanted.map(|(row, (_, token))| (row as u32, RowResult::Token(*token)));
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
}
