//! The engine's inner state, behind one lock: executable, pages and sequences. Whoever waits for a token
//! drives a step, and a step serves every sequence that has rows to run and whose adapters are in a slot. What goes wrong
//! with one sequence alone is kept for its own reader.

mod batch;
mod seating;
mod stepping;
#[cfg(test)]
mod tests;

use crate::adapters::{
    Acquired, AdapterId, AdapterSet, Arrival, Mixture, Mixtures, Recipe, Registry, Resolved,
    made_for,
};
use crate::pages::PagePool;
use crate::sequence::{Answer, Sequence, checked_prompt};
use crate::{Error, Request, Result};
use rusty_compiler::{Executable, SlotData};
use rusty_graph::Graph;
use rusty_loader::text::Tokenizer;
use std::collections::BTreeMap;
use std::sync::Arc;
use stepping::UnderWay;

/// See the module head.
pub(crate) struct Core {
    /// The network.
    graph: Arc<Graph>,
    /// Tokens of context per session.
    pub context: usize,
    pub executable: Box<dyn Executable>,
    pub pool: PagePool,
    pub sequences: BTreeMap<u64, Sequence>,
    pub row_budget: usize,
    pub output_budget: usize,
    pub adapters: Registry,
    next_sequence: u64,
    next_answer: u64,
    turn: usize,
    /// The step that runs ahead of its tokens.
    under_way: Option<UnderWay>,
}

impl Core {
    pub fn new(
        graph: Arc<Graph>,
        context: usize,
        executable: Box<dyn Executable>,
        pages: u32,
        row_budget: usize,
        output_budget: usize,
        adapters: Registry,
    ) -> Self {
        Self {
            graph,
            context,
            executable,
            pool: PagePool::new(pages),
            sequences: BTreeMap::new(),
            row_budget,
            output_budget,
            adapters,
            next_sequence: 0,
            next_answer: 0,
            turn: 0,
            under_way: None,
        }
    }

    pub fn open(&mut self) -> u64 {
        self.next_sequence += 1;
        self.sequences
            .insert(self.next_sequence, Sequence::default());
        self.next_sequence
    }

    /// Ends a sequence; gives the set that it named.
    pub fn close(&mut self, id: u64) -> AdapterSet {
        match self.sequences.remove(&id) {
            Some(sequence) => {
                self.pool.release(sequence.pages);
                sequence.set
            }
            None => AdapterSet::BASE,
        }
    }

    pub fn sequence(&mut self, id: u64) -> Result<(&mut Sequence, &mut PagePool)> {
        let missing = || Error::Request("the session is closed".into());
        Ok((
            self.sequences.get_mut(&id).ok_or_else(missing)?,
            &mut self.pool,
        ))
    }

    /// Registers an adapter, and puts it where its first user need not wait for it.
    pub fn admit(&mut self, arrival: Arrival) {
        let (id, held) = (arrival.id, arrival.held.clone());
        self.adapters.add(arrival);
        // What is free has been freed for those who wait.
        if !self.waiting_longest_first().is_empty() {
            self.adapters.shrink_host();
            return;
        }
        let settled = self.adapters.resolve(&id.into()).and_then(|key| {
            let mixture = Mixture {
                key,
                data: held,
                made_of: vec![],
            };
            self.adapters.settle(mixture, &mut *self.executable)
        });
        if let Err(error) = settled {
            tracing::warn!("adapter {id} stays in the host's memory until it is used: {error}");
        }
    }

    /// Forgets an adapter that no session names, and frees what it holds.
    pub fn dismiss(&mut self, id: AdapterId) {
        if let Err(error) = self.adapters.remove(id, &mut *self.executable) {
            tracing::warn!("adapter {id} is detached, but not all of it is freed: {error}");
        }
    }

    /// What it takes to make what a set amounts to, as slots hold it.
    ///
    /// # Errors
    /// An adapter is not attached.
    pub fn recipe(&self, key: &Resolved) -> Result<Recipe> {
        self.adapters.recipe(key, self.executable.copies_tables())
    }

    /// Whether an answer ended with an error that its reader has not seen yet.
    pub fn has_failed(&self, id: u64) -> bool {
        let answer = self.sequences.get(&id).and_then(|s| s.answer.as_ref());
        answer.is_some_and(|a| a.failure.is_some())
    }

    /// Starts an answer in a sequence; `mixture` is what its set amounts to, where that is in no slot.
    pub fn begin(
        &mut self,
        id: u64,
        prompt: &[u32],
        request: &Request,
        tokenizer: Option<&Tokenizer>,
        mixture: Option<Mixture>,
    ) -> Result<()> {
        let graph = self.graph.clone();
        let sequence = self.sequence(id)?.0;
        sequence.answer = None;
        let set = sequence.set.clone();
        let key = self.adapters.resolve(&set)?;
        let (sequence, pool) = self.sequence(id)?;
        if key != sequence.key {
            sequence.forget("its adapters or their weights changed", pool);
            sequence.key = key.clone();
        }
        let (data, mixture) = match self.acquire_idle(&key, mixture)? {
            Acquired::Slot(_, data) => (data, None),
            Acquired::Waits(mixture) => (Some(mixture.data.clone()), Some(mixture)),
        };
        let virtual_ids = virtual_ids(data.as_deref(), graph.vocab);
        let tokens = checked_prompt(prompt, &virtual_ids, request, self.context)?;
        let mut answer = Answer::new(request, tokenizer, self.context, prompt.len());
        answer.mixture = mixture;
        self.next_answer += 1;
        answer.number = self.next_answer;
        let (sequence, pool) = self.sequence(id)?;
        sequence.begin(tokens, virtual_ids.len(), answer, &graph, pool)?;
        let written = self.write_prefix(id, data.as_deref());
        if written.is_err() {
            let (sequence, pool) = self.sequence(id)?;
            sequence.answer = None;
            sequence.keep(0, pool);
        }
        written
    }

    /// Puts what an adapter's sequences begin with into the cache, where it is not there yet.
    fn write_prefix(&mut self, id: u64, data: Option<&SlotData>) -> Result<()> {
        let Some(prefix) = data.and_then(|d| d.prefix.as_ref()) else {
            return Ok(());
        };
        if let Some(sequence) = self.sequences.get_mut(&id)
            && sequence.computed < prefix.tokens as usize
        {
            self.executable.write_prefix(&sequence.pages, prefix)?;
            sequence.computed = prefix.tokens as usize;
            sequence.fixed = sequence.computed;
        }
        Ok(())
    }

    /// What it takes to make the first mixture that answers need once an adapter has another weight, and that is neither in a
    /// slot nor `made`; none where there is all.
    ///
    /// # Errors
    /// The weight is none.
    pub fn unmade(
        &self,
        id: AdapterId,
        weight: f32,
        answering: &[u64],
        made: &Mixtures,
    ) -> Result<Option<Recipe>> {
        for session in answering {
            let Some(sequence) = self.sequences.get(session) else {
                continue;
            };
            let key = self.adapters.resolve_with(&sequence.set, id, weight)?;
            if !made.contains_key(&key) && !self.adapters.is_at_hand(&key) {
                return self.recipe(&key).map(Some);
            }
        }
        Ok(None)
    }

    /// Weights an adapter. Running answers that use it go on with the new weight: everything they have is computed
    /// again, with the mixtures that were `made` for it.
    ///
    /// # Errors
    /// The weight is none, or changes how many virtual tokens an answer begins with: nothing has changed then. A mixture
    /// that cannot be made ends the answers that need it; of such errors the first is given.
    pub fn reweight(
        &mut self,
        id: AdapterId,
        weight: f32,
        answering: &[u64],
        mut made: Mixtures,
    ) -> Result<()> {
        let before = self.adapters.set_weight(id, weight)?;
        for session in answering {
            let Some(sequence) = self.sequences.get(session) else {
                continue;
            };
            let same = self
                .adapters
                .resolve(&sequence.set)
                .map(|key| self.adapters.virtual_tokens(&key) == sequence.virtual_tokens);
            if !matches!(same, Ok(true)) {
                self.adapters.set_weight(id, before)?;
                same?;
                return Err(Error::Request(format!(
                    "adapter {id} brings a soft prompt; it cannot come or go within an answer"
                )));
            }
        }
        let mut done: Result<()> = Ok(());
        for session in answering {
            if let Err(error) = self.recompute(*session, &mut made) {
                if let Ok((sequence, pool)) = self.sequence(*session) {
                    sequence.fail(Error::Request(format!("its adapters changed: {error}")));
                    sequence.keep(0, pool);
                }
                done = done.and(Err(error));
            }
        }
        let busy = self.busy_slots();
        let emptied = self
            .adapters
            .empty_slots_of(id, &mut *self.executable, &|s| busy.contains(&s));
        done.and(emptied)
    }

    /// Lets an answer go on with its set as it is weighted now, from its beginning.
    fn recompute(&mut self, id: u64, made: &mut Mixtures) -> Result<()> {
        let set = self.sequence(id)?.0.set.clone();
        let key = self.adapters.resolve(&set)?;
        // It may have come to a slot since it was made, or since that failed.
        let (data, mixture) = match self.adapters.is_at_hand(&key) {
            true => (self.adapters.host_part(&key), None),
            false => {
                let mixture = made_for(made, &key)?;
                (mixture.as_ref().map(|m| m.data.clone()), mixture)
            }
        };
        let sequence = self.sequence(id)?.0;
        (sequence.key, sequence.computed) = (key, 0);
        if let Some(answer) = &mut sequence.answer {
            answer.mixture = mixture;
        }
        self.write_prefix(id, data.as_deref())
    }
}

/// Ids of an adapter's virtual tokens: first those whose keys and values it brings, then those whose embeddings.
pub(crate) fn virtual_ids(data: Option<&SlotData>, vocab: u32) -> Vec<u32> {
    let Some(data) = data else {
        return vec![];
    };
    let all = data.virtual_tokens();
    let embedded = all - data.prefix.as_ref().map_or(0, |p| p.tokens);
    let ids = (embedded..all).chain(0..embedded);
    ids.map(|i| vocab + i).collect()
}
