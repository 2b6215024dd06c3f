//! What a set amounts to, made without the engine's lock: under it only references to tables are taken. Reading those that are
//! in files and stacking those of several adapters takes time, for which nobody else's step has to wait.
//!
//! What is made stays right whatever happens meanwhile: tables never change under an adapter's id, and weights are part of
//! the key. It is used for the set that has this key when the lock is held again, and for no other.

use super::{AdapterId, Resolved, Source};
use crate::Result;
use rusty_adapters::mix;
use rusty_compiler::SlotData;
use rusty_graph::Graph;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// What it takes to make a mixture.
pub(crate) struct Recipe {
    pub key: Resolved,
    pub parts: Vec<Part>,
    /// The network that adapters are mixed for.
    pub graph: Arc<Graph>,
}

/// An adapter of a set.
pub(crate) struct Part {
    pub id: AdapterId,
    pub weight: f32,
    pub tables: Tables,
}

/// Where an adapter's tables are.
pub(crate) enum Tables {
    /// In memory.
    Held(Arc<SlotData>),
    /// Where they are to be read from.
    Absent(Source),
}

/// What a set of one or several adapters amounts to, ready for a slot.
pub(crate) struct Mixture {
    pub key: Resolved,
    pub data: Arc<SlotData>,
    /// Adapters that were read for it, and the seconds that it took.
    pub read: Vec<(AdapterId, Arc<SlotData>, f64)>,
}

/// Mixtures by their keys, or why there is none.
pub(crate) type Mixtures = HashMap<Resolved, Result<Mixture>>;

impl Recipe {
    /// Reads what is not in memory and stacks the adapters.
    ///
    /// # Errors
    /// A file is gone or is another by now, or the adapters cannot be mixed.
    pub fn make(self) -> Result<Mixture> {
        let mut read = Vec::new();
        let mut parts = Vec::with_capacity(self.parts.len());
        for Part { id, weight, tables } in self.parts {
            let data = match tables {
                Tables::Held(data) => data,
                Tables::Absent(source) => {
                    let start = Instant::now();
                    let data = source.read()?;
                    read.push((id, data.clone(), start.elapsed().as_secs_f64()));
                    data
                }
            };
            parts.push((data, weight));
        }
        let data = match &parts[..] {
            [(only, 1.0)] => only.clone(),
            several => {
                let several: Vec<_> = several.iter().map(|(data, w)| (&**data, *w)).collect();
                Arc::new(mix(&several, self.key.mix(), &self.graph)?)
            }
        };
        Ok(Mixture {
            key: self.key,
            data,
            read,
        })
    }
}
