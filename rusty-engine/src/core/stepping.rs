//! Steps, one behind the other.
//!
//! Where the executable takes steps ahead, the next one is enqueued before the results of the one before it are there: its rows take
//! the tokens that the device is about to choose. So the device does not wait while the host reads a token, tells it, and makes
//! the next step. It is done only where the same answers would have rows in that step if the host knew those tokens: all who
//! have rows to run are in the step before, each with its last row, for a token that the device chooses. An answer may end with
//! that token; its row was run in vain then, and what it gave is dropped.

use super::Core;
use super::batch::Batch;
use crate::Result;
use crate::scheduler::{Chunk, Waiting, schedule};
use crate::sequence::{Next, Sequence};
use rusty_compiler::{SlotId, StepOutput, Want, chosen};

/// A step under way.
pub(super) struct UnderWay {
    awaited: Vec<Awaited>,
    /// Its results, where it has run already.
    output: Option<StepOutput>,
}

/// Rows of a sequence that are under way.
struct Awaited {
    sequence: u64,
    /// The answer that they are for.
    answer: u64,
    slot: SlotId,
    /// First token.
    from: usize,
    /// Tokens.
    rows: usize,
    /// Whether the last one's row gives the next token.
    last: bool,
}

impl Awaited {
    /// Whether the sequence still awaits them, and nothing before them.
    fn are_of(&self, sequence: &Sequence) -> bool {
        let answer = sequence.answer.as_ref();
        let same = answer.is_some_and(|answer| answer.number == self.answer);
        same && sequence.is_answering() && sequence.computed == self.from
    }
}

impl Core {
    /// Runs one step for everybody who has rows to run and a slot to run them with; false where nobody has.
    pub fn step(&mut self) -> Result<bool> {
        let under_way = match self.under_way.take() {
            Some(ahead) => ahead,
            None => match self.start()? {
                Some(started) => started,
                None => return Ok(false),
            },
        };
        self.under_way = self.start_behind(&under_way);
        self.land(under_way)?;
        Ok(true)
    }

    /// Takes the results of what is under way: whoever runs steps of his own does so first.
    pub fn settle(&mut self) -> Result<()> {
        match self.under_way.take() {
            Some(under_way) => self.land(under_way),
            None => Ok(()),
        }
    }

    /// Starts a step of those who have rows to run; none where nobody has.
    fn start(&mut self) -> Result<Option<UnderWay>> {
        let slots = self.seat();
        let list: Vec<(&u64, &Sequence)> = self.sequences.iter().collect();
        let waiting = list
            .iter()
            .zip(&slots)
            .map(|((_, sequence), slot)| match slot {
                Some(_) => sequence.waiting(),
                None => Waiting { from: 0, rows: 0 },
            });
        let waiting: Vec<Waiting> = waiting.collect();
        let mut chunks = schedule(&waiting, self.row_budget, self.output_budget, self.turn);
        // Neighbouring rows of one adapter read its tables once.
        chunks.sort_by_key(|c| slots[c.sequence]);
        self.turn = self.turn.wrapping_add(1);
        if chunks.is_empty() {
            return Ok(None);
        }
        let served = chunks.iter().filter_map(|c| slots[c.sequence]);
        self.adapters.serve(served);
        let mut batch = Batch::default();
        let mut awaited = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            let (id, sequence) = list[chunk.sequence];
            let slot = slots[chunk.sequence].unwrap_or_default();
            let &Chunk {
                from, rows, last, ..
            } = chunk;
            let want = if last { sequence.want() } else { Want::Nothing };
            let tokens = &sequence.tokens[from..from + rows];
            batch.push(sequence, slot, from, tokens, want);
            awaited.push(Awaited {
                sequence: *id,
                answer: sequence.answer.as_ref().map_or(0, |a| a.number),
                slot,
                from,
                rows,
                last,
            });
        }
        let output = match self.executable.queue() {
            Some(queue) => {
                queue.enqueue(&batch.step())?;
                None
            }
            None => Some(self.executable.run(&batch.step())?),
        };
        Ok(Some(UnderWay { awaited, output }))
    }

    /// Starts the step behind one that is under way, as far as it is known.
    fn start_behind(&mut self, first: &UnderWay) -> Option<UnderWay> {
        if first.output.is_some() || first.awaited.iter().any(|rows| !rows.last) {
            return None;
        }
        let going = self.going_on(first)?;
        if !self.reserve(&going) {
            return None;
        }
        let mut batch = Batch::default();
        for (place, awaited) in &going {
            let sequence = self.sequences.get(&awaited.sequence)?;
            let token = chosen(*place);
            batch.push(sequence, awaited.slot, awaited.from, &[token], Want::ArgMax);
        }
        let queue = self.executable.queue()?;
        if let Err(error) = queue.enqueue(&batch.step()) {
            // It comes again, if it is one, once the step is due.
            tracing::debug!("no step is enqueued ahead: {error}");
            return None;
        }
        self.adapters
            .serve(going.iter().map(|(_, awaited)| awaited.slot));
        Some(UnderWay {
            awaited: going.into_iter().map(|(_, awaited)| awaited).collect(),
            output: None,
        })
    }

    /// Rows of the step behind `first`, each with the place among the tokens of `first` that its own has; none where they are not
    /// known, or nobody goes on.
    fn going_on(&self, first: &UnderWay) -> Option<Vec<(u32, Awaited)>> {
        let mut going = Vec::with_capacity(first.awaited.len());
        let mut running = 0;
        for (place, awaited) in first.awaited.iter().enumerate() {
            let Some(sequence) = self.sequences.get(&awaited.sequence) else {
                continue;
            };
            if !awaited.are_of(sequence) {
                continue;
            }
            running += usize::from(sequence.waiting().rows > 0);
            match sequence.next() {
                Next::Ends => {}
                Next::Waits => return None,
                Next::Goes => {
                    let slot = self.adapters.slot_with(&sequence.key);
                    let slot = slot.filter(|slot| *slot == awaited.slot)?;
                    let data = self.adapters.host_part(&sequence.key);
                    let embedding = data.as_ref().and_then(|data| data.embedding.as_ref());
                    if embedding.is_some_and(|e| e.changes_tokens()) {
                        return None;
                    }
                    let ahead = Awaited {
                        from: awaited.from + awaited.rows,
                        rows: 1,
                        slot,
                        ..*awaited
                    };
                    going.push((place as u32, ahead));
                }
            }
        }
        // Who lost a slot and does not ask for another takes part in no step.
        let waiting = self.sequences.values().filter(|s| {
            let asks = s.answer.as_ref().is_some_and(|a| a.mixture.is_some());
            s.waiting().rows > 0 && (asks || self.adapters.is_at_hand(&s.key))
        });
        (waiting.count() == running && !going.is_empty()).then_some(going)
    }

    /// Takes the pages of rows that go on; none where there is not room for all: an answer that ends now may leave it.
    fn reserve(&mut self, going: &[(u32, Awaited)]) -> bool {
        for (_, awaited) in going {
            let sequence = self.sequences.get_mut(&awaited.sequence);
            let reserved = sequence.map(|s| s.reserve(awaited.from + 1, &mut self.pool));
            if !matches!(reserved, Some(Ok(()))) {
                for (_, awaited) in going {
                    if let Some(sequence) = self.sequences.get_mut(&awaited.sequence) {
                        sequence.trim(&mut self.pool);
                    }
                }
                return false;
            }
        }
        true
    }

    /// Waits for a step and gives its results to those who still await them.
    fn land(&mut self, under_way: UnderWay) -> Result<()> {
        let UnderWay { awaited, output } = under_way;
        let output = match output {
            Some(output) => output,
            None => self.finish().inspect_err(|_| self.under_way = None)?,
        };
        let mut results = output.results.into_iter();
        for rows in awaited {
            let result = rows.last.then(|| results.next()).flatten();
            let Some(sequence) = self.sequences.get_mut(&rows.sequence) else {
                continue;
            };
            if rows.are_of(sequence) {
                sequence.computed += rows.rows;
                if let Some((_, result)) = result {
                    sequence.advance(result, &mut self.pool);
                }
            }
            if !sequence.is_answering() {
                sequence.trim(&mut self.pool);
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<StepOutput> {
        let none = || rusty_compiler::Error::Step("nothing is enqueued".into());
        Ok(self.executable.queue().ok_or_else(none)?.finish()?)
    }
}
