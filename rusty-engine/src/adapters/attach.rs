//! Attaching, weighting and detaching adapters while an engine runs.

use super::{
    AdapterId, AdapterMemory, AdapterSet, AdapterStatus, Arrival, Mixture, Mixtures, OnRunning,
    ReadTables, Source, plain,
};
use crate::core::Core;
use crate::engine::Engine;
use crate::{Error, Result};
use parking_lot::MutexGuard;
use rusty_adapters::{Base, Precision, Stamp};
use rusty_compiler::{SlotData, SlotShape};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

impl Engine {
    /// Registers an adapter that is ready; where a slot is free and the device has memory for it, it is put there. A step that runs
    /// is not waited for.
    ///
    /// # Errors
    /// It does not fit the model.
    pub fn attach(&self, adapter: impl Into<Arc<SlotData>>) -> Result<AdapterId> {
        self.register(adapter.into(), Source::Given, 0.0)
    }

    /// Reads, prepares and registers an adapter: a PEFT folder, a GGUF or a packed file. Its tables may leave memory when
    /// they are not in use and the budget asks for it; they are then read again.
    ///
    /// # Errors
    /// The file is malformed, of a kind that is not supported, or does not fit the model.
    pub fn attach_file(&self, path: &Path, precision: Precision) -> Result<AdapterId> {
        let source = Source::File {
            path: path.into(),
            precision,
            graph: self.shared_graph().clone(),
            base: self.base().cloned(),
            cache: self.adapter_cache().cloned(),
            stamp: Stamp::of(path),
        };
        let start = Instant::now();
        let data = source.read()?;
        self.register(data, source, start.elapsed().as_secs_f64())
    }

    fn register(&self, data: Arc<SlotData>, source: Source, prepared_s: f64) -> Result<AdapterId> {
        data.check(SlotShape::of(self.graph())).map_err(|misfit| {
            let name = match &source {
                Source::File { path, .. } => path.display().to_string(),
                Source::Given => data.name.clone(),
            };
            Error::Request(format!(
                "adapter {name} does not fit the model at {}: {}",
                misfit.place, misfit.reason
            ))
        })?;
        let held = match self.copies_tables() {
            true => plain(data.clone())?,
            false => data.clone(),
        };
        let id = self.roster().attach(|id| Arrival {
            id,
            data,
            held,
            source,
            prepared_s,
        });
        // Where nobody has the core, this registers it.
        drop(self.try_core());
        Ok(id)
    }

    /// The core, locked when what a set amounts to is in a slot, or ready for one. Files are read and adapters stacked while
    /// others go on; where weights change meanwhile, once more with the new ones.
    ///
    /// # Errors
    /// An adapter is not attached, its file is gone or is another by now, or adapters cannot be mixed.
    pub(crate) fn core_for(
        &self,
        set: &AdapterSet,
    ) -> Result<(MutexGuard<'_, Core>, Option<Mixture>)> {
        let mut mixture: Option<Mixture> = None;
        let mut read = ReadTables::new();
        loop {
            let core = self.core();
            let key = core.adapters.resolve(set)?;
            let made = mixture.as_ref().is_some_and(|m| m.key == key);
            if made || core.adapters.is_at_hand(&key) {
                return Ok((core, mixture));
            }
            let recipe = core.recipe(&key)?;
            drop(core);
            mixture = Some(recipe.make(&mut read)?);
        }
    }

    /// Forgets an adapter. A step that runs is not waited for; what the adapter holds is freed behind it.
    ///
    /// # Errors
    /// A session still names it, or it is not attached.
    pub fn detach(&self, id: AdapterId) -> Result<()> {
        self.roster().detach(id)?;
        // Where nobody has the core, this frees it.
        drop(self.try_core());
        Ok(())
    }

    /// Weights an adapter in all sets that name it; 0 takes it out of them. Sessions that use it start from an empty
    /// cache with their next request.
    ///
    /// # Errors
    /// The weight is not finite, or neither 1 nor 0 where the adapter brings a soft prompt or a whole embedding; the adapter is
    /// not attached; or an answer runs with it and `running` refuses or its soft
    /// prompt would come or go: nothing has changed then. A mixture that cannot be made ends the answers that
    /// need it, and no others; the weight is changed all the same, and the first such error is returned.
    pub fn set_weight(&self, id: AdapterId, weight: f32, running: OnRunning) -> Result<()> {
        let (mut made, mut read) = (Mixtures::new(), ReadTables::new());
        loop {
            let mut core = self.core();
            let answering = core.sequences.iter();
            let answering = answering.filter(|(_, s)| s.names(id) && s.is_answering());
            let answering: Vec<u64> = answering.map(|(session, _)| *session).collect();
            if running == OnRunning::Refuse && !answering.is_empty() {
                return Err(Error::Request(format!(
                    "{} answers run with adapter {}; let them end, or have them computed again",
                    answering.len(),
                    id.0
                )));
            }
            let Some(recipe) = core.unmade(id, weight, &answering, &made)? else {
                return core.reweight(id, weight, &answering, made);
            };
            drop(core);
            // What fails is told to those who need it, once the weight is changed.
            made.insert(recipe.key.clone(), recipe.make(&mut read));
        }
    }

    /// Keeps an adapter where it is, or lets it make room again.
    ///
    /// # Errors
    /// It is not attached.
    pub fn pin(&self, id: AdapterId, pinned: bool) -> Result<()> {
        self.core().adapters.pin(id, pinned)
    }

    /// What is known of all attached adapters.
    pub fn adapters(&self) -> Vec<AdapterStatus> {
        let core = self.core();
        let sessions = |id| core.sequences.values().filter(|s| s.names(id)).count();
        core.adapters.status(sessions)
    }

    /// Bytes that adapters hold in slots and in the host's memory. [`Engine::memory`] has what a device's buffers for slots
    /// take, with the room that is kept in them.
    pub fn adapter_memory(&self) -> AdapterMemory {
        self.core().adapters.memory()
    }

    /// What adapters read from files are prepared for.
    pub fn adapter_base(&self) -> Base<'_> {
        Base {
            graph: self.graph(),
            file: self.base().map(|file| &**file),
        }
    }
}
