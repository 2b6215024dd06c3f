//! Adapters that were read and are not registered yet. A step may take longer than reading an adapter, and to register one the
//! step's lock is needed; so whoever takes that next does it, and attaching waits for no step.

use super::{AdapterId, Source};
use parking_lot::Mutex;
use rusty_compiler::SlotData;
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

/// See the module head.
#[derive(Default)]
pub(crate) struct Arrivals {
    waiting: Mutex<(u32, Vec<Arrival>)>,
}

impl Arrivals {
    /// Gives an adapter its id; whoever knows that finds it registered.
    pub fn push(&self, arrival: impl FnOnce(AdapterId) -> Arrival) -> AdapterId {
        let (last, waiting) = &mut *self.waiting.lock();
        *last += 1;
        let id = AdapterId(*last);
        waiting.push(arrival(id));
        id
    }

    /// Those that came since, in their order.
    pub fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut self.waiting.lock().1)
    }
}
