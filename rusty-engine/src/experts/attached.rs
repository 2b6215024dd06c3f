//! A library at work: attached to an engine, with a router in front.

use super::library::{Expert, Library};
use super::manifest::BASE;
use super::router::{Choice, Router};
use crate::Result;
use crate::adapters::{AdapterId, AdapterSet};
use crate::engine::Engine;
use crate::session::Session;
use rusty_adapters::Precision;

/// Experts that answer on an engine. All of them are attached from the start: a message waits for no file, unless the
/// engine's adapter budget made one leave memory.
pub struct Experts {
    engine: Engine,
    library: Library,
    /// In the library's order.
    adapters: Vec<AdapterId>,
    router: Router,
}

impl Experts {
    /// Attaches every expert's adapter in load order. A manifest made for another model than this one is a warning.
    ///
    /// # Errors
    /// An adapter is malformed or does not fit; none stays attached then.
    pub fn attach(
        engine: &Engine,
        library: Library,
        router: Router,
        precision: Precision,
    ) -> Result<Self> {
        let mut experts = Self {
            engine: engine.clone(),
            library: Library::default(),
            adapters: vec![],
            router,
        };
        for expert in library.experts() {
            let (manifest, model) = (expert.manifest(), engine.label());
            if let Some(base) = manifest.base.as_deref().filter(|_| !manifest.suits(model)) {
                let path = expert.path().display();
                tracing::warn!("{path}: made for {base}, the model is {model}");
            }
            // Where one cannot be attached, dropping `experts` detaches those before it.
            experts.adapters.push(expert.attach(engine, precision)?);
        }
        experts.library = library;
        Ok(experts)
    }

    /// The experts.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Chooses who answers a message.
    pub fn choose(&self, message: &str) -> Choice {
        self.router.route(message)
    }

    /// The chosen expert's name, or `base`.
    pub fn name(&self, choice: &Choice) -> &str {
        self.expert(choice).map_or(BASE, Expert::name)
    }

    /// What the chosen one is asked: the message in the expert's template.
    pub fn prompt(&self, choice: &Choice, message: &str) -> String {
        match self.expert(choice) {
            Some(expert) => expert.manifest().prompt(message),
            None => message.into(),
        }
    }

    /// Lets the chosen one give the session's next answers. A session that was another's starts from an empty cache.
    ///
    /// # Errors
    /// The adapter was detached meanwhile.
    pub fn seat(&self, choice: &Choice, session: &mut Session) -> Result<()> {
        let adapter = choice.expert.and_then(|i| self.adapters.get(i)).copied();
        if session.adapters() != AdapterSet::from(adapter) {
            session.clear();
        }
        session.set_adapter(adapter)
    }

    /// Several experts by name, with weights, as one set: in load order, whatever the order given.
    ///
    /// # Errors
    /// No expert has such a name.
    pub fn combine(&self, experts: &[(&str, f32)]) -> Result<AdapterSet> {
        let mut places = Vec::with_capacity(experts.len());
        for (name, weight) in experts {
            let place = self
                .library
                .experts()
                .iter()
                .position(|e| e.name() == *name);
            let missing = || crate::Error::Request(format!("there is no expert '{name}'"));
            places.push((place.ok_or_else(missing)?, *weight));
        }
        places.sort_by_key(|(place, _)| *place);
        let entries = places.into_iter().map(|(at, w)| (self.adapters[at], w));
        Ok(AdapterSet::sum(entries))
    }

    fn expert(&self, choice: &Choice) -> Option<&Expert> {
        self.library.experts().get(choice.expert?)
    }
}

/// Detaches the experts' adapters; those that a session still names stay with the engine.
impl Drop for Experts {
    fn drop(&mut self) {
        for id in &self.adapters {
            if let Err(error) = self.engine.detach(*id) {
                tracing::debug!("{error}");
            }
        }
    }
}
