//! Sessions: a conversation's tokens and cache, and the stream of an answer.

use crate::adapters::{AdapterSet, ReadTables};
use crate::engine::Engine;
use crate::request::{Finish, Prompt, Request, Timings, Token};
use crate::{Error, Result};
use parking_lot::MutexGuard;
use rusty_loader::text::Render;

/// One sequence in an engine. Dropping it frees its pages.
///
/// A request whose prompt continues what the session's cache holds runs only the new part.
pub struct Session {
    engine: Engine,
    id: u64,
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Self {
        let id = engine.core().open();
        Self { engine, id }
    }

    /// Which adapters later requests use. Others than before, or other weights, empty the session's cache with a
    /// warning: keys and values hold the adapters' work. [`Session::clear`] before says that this is meant.
    ///
    /// # Errors
    /// An adapter is not attached, or a weight is not finite.
    pub fn set_adapter(&mut self, set: impl Into<AdapterSet>) -> Result<()> {
        let set = set.into();
        let mut core = self.engine.core();
        let key = core.adapters.resolve(&set)?;
        let (sequence, pool) = core.sequence(self.id)?;
        self.engine.roster().rename(&sequence.set, &set)?;
        sequence.answer = None;
        if sequence.key != key {
            sequence.forget("the session changed its adapters", pool);
            sequence.key = key;
        }
        sequence.set = set;
        Ok(())
    }

    /// Which adapters requests use.
    pub fn adapters(&self) -> AdapterSet {
        let mut core = self.engine.core();
        core.sequence(self.id)
            .map_or(AdapterSet::BASE, |(s, _)| s.set.clone())
    }

    /// Empties the session's cache, so that the next request starts anew.
    pub fn clear(&mut self) {
        if let Ok((sequence, pool)) = self.engine.core().sequence(self.id) {
            sequence.answer = None;
            sequence.keep(0, pool);
        }
    }

    /// Starts an answer; tokens come as they are pulled. An answer under way is given up.
    ///
    /// # Errors
    /// As [`Session::prompt_tokens`]; the prompt is empty or too long, the settings are out of range, the cache is full, or
    /// the session's adapters find no memory, cannot be mixed or cannot be read again.
    pub fn generate(&mut self, request: &Request) -> Result<Generation<'_>> {
        let prompt = self.prompt_tokens(&request.prompt)?;
        let tokenizer = self.engine.tokenizer().cloned();
        let (mut core, mixture) = self.engine.core_for(&self.adapters())?;
        core.begin(self.id, &prompt, request, tokenizer.as_ref(), mixture)?;
        drop(core);
        Ok(Generation {
            session: self,
            failed: false,
        })
    }

    /// The token ids of a prompt.
    ///
    /// # Errors
    /// The model has no tokenizer or chat template where one is needed, they refuse the prompt, or a token has no row
    /// among the model's embeddings.
    pub fn prompt_tokens(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        let tokens = self.tokens_of(prompt)?;
        self.engine.check_tokens(&tokens)?;
        Ok(tokens)
    }

    fn tokens_of(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Text(text) => Ok(self.engine.text_tokenizer()?.encode(text, true)?),
            Prompt::Chat(messages) => {
                let tokenizer = self.engine.text_tokenizer()?;
                let template = self.engine.template()?;
                let text = template.render(&Render {
                    messages: serde_json::to_value(messages)
                        .map_err(|e| Error::Request(e.to_string()))?,
                    add_generation_prompt: true,
                    bos_token: tokenizer.bos_token().unwrap_or_default(),
                    eos_token: tokenizer.eos_token().unwrap_or_default(),
                    ..Render::default()
                })?;
                Ok(tokenizer.encode(&text, false)?)
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut core = self.engine.core();
        let set = core.close(self.id);
        let left = self.engine.roster().rename(&set, &AdapterSet::BASE);
        debug_assert!(left.is_ok(), "the base is always there");
    }
}

/// The tokens of an answer, computed as they are pulled.
pub struct Generation<'a> {
    session: &'a mut Session,
    failed: bool,
}

impl Generation<'_> {
    /// Why the answer ended; none while it goes on.
    pub fn finish(&self) -> Option<Finish> {
        let mut core = self.session.engine.core();
        let (sequence, _) = core.sequence(self.session.id).ok()?;
        sequence.answer.as_ref()?.finish
    }

    /// Times so far.
    pub fn timings(&self) -> Timings {
        let mut core = self.session.engine.core();
        let answer = core
            .sequence(self.session.id)
            .ok()
            .and_then(|(s, _)| s.answer.as_ref());
        answer.map(|a| a.timings).unwrap_or_default()
    }

    fn pull(&mut self) -> Result<Option<Token>> {
        loop {
            // The lock is taken anew for each step, so that sessions in other threads take their turns.
            let mut core = self.session.engine.core();
            let (sequence, _) = core.sequence(self.session.id)?;
            let Some(answer) = &mut sequence.answer else {
                return Ok(None);
            };
            if let Some(token) = answer.queue.pop_front() {
                return Ok(Some(token));
            }
            if let Some(error) = answer.failure.take() {
                sequence.answer = None;
                return Err(error);
            }
            if answer.finish.is_some() {
                return Ok(None);
            }
            // Its adapters made room for others'. They are read and stacked while others go on.
            if let Some(recipe) = core.unmade_of(self.session.id)? {
                drop(core);
                let key = recipe.key.clone();
                let made = recipe.make(&mut ReadTables::new());
                self.session.engine.core().hand(self.session.id, &key, made);
                continue;
            }
            let stepped = core.step();
            let goes_on = core.has_failed(self.session.id);
            // Who waits for the core comes before the next step.
            MutexGuard::unlock_fair(core);
            if !stepped? && !goes_on {
                return Err(Error::Request(
                    "the answer cannot go on: a step that served it was interrupted".into(),
                ));
            }
        }
    }
}

/// An answer that nobody reads any more takes no part in later steps.
impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if let Ok((sequence, _)) = self.session.engine.core().sequence(self.session.id) {
            sequence.answer = None;
        }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Result<Token>> {
        if self.failed {
            return None;
        }
        let result = self.pull().transpose();
        self.failed = matches!(result, Some(Err(_)));
        result
    }
}
