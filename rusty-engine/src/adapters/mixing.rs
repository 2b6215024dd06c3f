//! What a set amounts to, made without the engine's lock: under it only references to tables are taken. Reading those that are
//! in files, stacking those of several adapters, and multiplying out what slots do not hold otherwise takes time, for which nobody
//! else's step has to wait.
//!
//! What is made stays right whatever happens meanwhile: tables never change under an adapter's id, and weights are part of
//! the key. It is used for the set that has this key when the lock is held again, and for no other.

use super::{AdapterId, Resolved, Source};
use crate::{Error, Result};
use rusty_adapters::mix;
use rusty_compiler::SlotData;
use rusty_graph::Graph;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// What it takes to make a mixture.
pub(crate) struct Recipe {
    pub key: Resolved,
    pub parts: Vec<Part>,
    /// The network that adapters are mixed for.
    pub graph: Arc<Graph>,
    /// Whether slots hold plain factors.
    pub plain: bool,
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
#[derive(Clone, Debug)]
pub(crate) struct Mixture {
    pub key: Resolved,
    pub data: Arc<SlotData>,
    /// The adapters that it was made of.
    pub made_of: Vec<Ingredient>,
}

/// An adapter as it went into a mixture.
#[derive(Clone, Debug)]
pub(crate) struct Ingredient {
    pub id: AdapterId,
    pub data: Arc<SlotData>,
    /// Seconds that reading it took, where it was not in memory.
    pub read_s: Option<f64>,
}

/// Tables that were read, with the seconds that it took: what goes into several mixtures is read for the first of them.
pub(crate) type ReadTables = HashMap<AdapterId, (Arc<SlotData>, f64)>;

/// Mixtures by their keys, or why there is none.
pub(crate) type Mixtures = HashMap<Resolved, Result<Mixture>>;

/// What was made for a set, where something was. It stays for others that need it, and so does why it could not be made.
///
/// # Errors
/// It could not be made.
pub(crate) fn made_for(made: &mut Mixtures, key: &Resolved) -> Result<Option<Mixture>> {
    match made.remove(key) {
        None => Ok(None),
        Some(Ok(mixture)) => {
            made.insert(key.clone(), Ok(mixture.clone()));
            Ok(Some(mixture))
        }
        Some(Err(error)) => {
            made.insert(key.clone(), Err(Error::Request(error.to_string())));
            Err(error)
        }
    }
}

impl Recipe {
    /// Reads what is neither in memory nor `read` already, and stacks the adapters.
    ///
    /// # Errors
    /// A file is gone or is another by now, or the adapters cannot be mixed.
    pub fn make(self, read: &mut ReadTables) -> Result<Mixture> {
        let mut made_of = Vec::with_capacity(self.parts.len());
        let mut parts = Vec::with_capacity(self.parts.len());
        for Part { id, weight, tables } in self.parts {
            let (data, read_s) = match tables {
                Tables::Held(data) => (data, None),
                Tables::Absent(source) => {
                    let (data, seconds) = read_once(id, &source, read)?;
                    (data, Some(seconds))
                }
            };
            parts.push((data.clone(), weight));
            made_of.push(Ingredient { id, data, read_s });
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
            data: match self.plain {
                true => plain(data)?,
                false => data,
            },
            made_of,
        })
    }
}

/// An adapter with plain factors, as slots hold them that are copies.
pub(crate) fn plain(data: Arc<SlotData>) -> Result<Arc<SlotData>> {
    Ok(match data.plain()? {
        Cow::Borrowed(_) => data,
        Cow::Owned(plain) => Arc::new(plain),
    })
}

/// An adapter's tables and the seconds that reading them took, which is done where they are not `read` yet.
fn read_once(
    id: AdapterId,
    source: &Source,
    read: &mut ReadTables,
) -> Result<(Arc<SlotData>, f64)> {
    if let Some(known) = read.get(&id) {
        return Ok(known.clone());
    }
    let start = Instant::now();
    let data = source.read()?;
    let seconds = start.elapsed().as_secs_f64();
    tracing::debug!(adapter = data.name, seconds, "read again");
    read.insert(id, (data.clone(), seconds));
    Ok((data, seconds))
}
