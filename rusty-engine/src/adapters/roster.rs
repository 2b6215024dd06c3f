//! Which adapters there are and how many sessions name each, known without the engine's lock: a step may take longer than reading
//! an adapter. Those that came or went since are registered and forgotten by whoever takes that lock next, before anything
//! else; so attaching and detaching wait for no step, and nobody sees a difference.

use super::{AdapterId, AdapterSet, Source};
use crate::{Error, Result};
use parking_lot::Mutex;
use rusty_compiler::SlotData;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An adapter on its way to the registry.
pub(crate) struct Arrival {
    pub id: AdapterId,
    pub data: Arc<SlotData>,
    /// The same as slots hold it.
    pub held: Arc<SlotData>,
    pub source: Source,
    pub prepared_s: f64,
}

/// What changed since somebody had the engine's lock: who went, and who came to stay.
#[derive(Default)]
pub(crate) struct Changes {
    pub arrivals: Vec<Arrival>,
    pub departures: Vec<AdapterId>,
}

#[derive(Default)]
struct State {
    last: u32,
    /// Sessions that name each attached adapter.
    users: BTreeMap<AdapterId, usize>,
    changes: Changes,
}

/// See the module head.
#[derive(Default)]
pub(crate) struct Roster {
    state: Mutex<State>,
}

fn not_attached(id: AdapterId) -> Error {
    Error::Request(format!("adapter {id} is not attached"))
}

/// The adapters of a set, each once.
fn named(set: &AdapterSet) -> BTreeSet<AdapterId> {
    set.entries().iter().map(|(id, _)| *id).collect()
}

impl Roster {
    /// Gives an adapter its id; whoever knows that finds it registered.
    pub fn attach(&self, arrival: impl FnOnce(AdapterId) -> Arrival) -> AdapterId {
        let state = &mut *self.state.lock();
        state.last += 1;
        let id = AdapterId(state.last);
        state.users.insert(id, 0);
        state.changes.arrivals.push(arrival(id));
        id
    }

    /// Lets an adapter go.
    ///
    /// # Errors
    /// A session names it, or it is not attached.
    pub fn detach(&self, id: AdapterId) -> Result<()> {
        let state = &mut *self.state.lock();
        match state.users.get(&id) {
            None => Err(not_attached(id)),
            Some(0) => {
                state.users.remove(&id);
                let arrivals = &mut state.changes.arrivals;
                match arrivals.iter().position(|a| a.id == id) {
                    // Nobody knew it yet.
                    Some(at) => drop(arrivals.remove(at)),
                    None => state.changes.departures.push(id),
                }
                Ok(())
            }
            Some(users) => Err(Error::Request(format!(
                "{users} sessions still use adapter {id}"
            ))),
        }
    }

    /// A session names another set than before.
    ///
    /// # Errors
    /// An adapter of the new one is not attached: nothing has changed then.
    pub fn rename(&self, old: &AdapterSet, new: &AdapterSet) -> Result<()> {
        let state = &mut *self.state.lock();
        let new = named(new);
        if let Some(absent) = new.iter().find(|id| !state.users.contains_key(id)) {
            return Err(not_attached(*absent));
        }
        for id in new {
            *state.users.entry(id).or_default() += 1;
        }
        for id in named(old) {
            if let Some(users) = state.users.get_mut(&id) {
                *users -= 1;
            }
        }
        Ok(())
    }

    /// What changed since the last time.
    pub fn changes(&self) -> Changes {
        std::mem::take(&mut self.state.lock().changes)
    }
}
