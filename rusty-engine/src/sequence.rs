//! The state of one sequence: which tokens are known, which are computed, and what of its answer waits to be read.

use crate::adapters::{AdapterId, AdapterSet, Mixture, Resolved};
use crate::pages::PagePool;
use crate::request::{Finish, Request, Timings, Token};
use crate::sampler::{History, Sampler};
use crate::scheduler::Waiting;
use crate::stop::StopMatcher;
use crate::{Error, Result};
use rusty_compiler::{BindOptions, RowResult, Want};
use rusty_graph::Graph;
use rusty_loader::text::{TokenStream, Tokenizer};
use std::collections::VecDeque;
use std::time::Instant;

/// Tokens that may wait for a slow reader before its sequence rests.
pub(crate) const QUEUE: usize = 64;

/// A session's sequence: tokens with their pages, and the answer under way.
#[derive(Default)]
pub(crate) struct Sequence {
    /// All tokens, prompt and answer.
    pub tokens: Vec<u32>,
    /// How many of them have their keys and values in the cache.
    pub computed: usize,
    /// Pages, in order.
    pub pages: Vec<u32>,
    /// Adapters that the session wants.
    pub set: AdapterSet,
    /// Adapters and weights to which the cache belongs.
    pub key: Resolved,
    /// Tokens in front that are an adapter's own.
    pub virtual_tokens: usize,
    /// How many in front were not computed but brought by an adapter.
    pub fixed: usize,
    /// Length that fixes length-dependent rotary frequencies.
    pub rope_length: u32,
    /// Length beyond which the cache must be made anew with other frequencies.
    pub rope_limit: Option<u32>,
    /// The answer under way.
    pub answer: Option<Answer>,
}

/// What comes behind the next token of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: the answer ends with it.
    Ends,
    /// What the host has to see that token for.
    Waits,
    /// A row of that token, unless it ends the answer.
    Goes,
}

/// An answer under way.
pub(crate) struct Answer {
    /// Its own among all answers.
    pub number: u64,
    sampler: Sampler,
    stream: Option<TokenStream>,
    stop: StopMatcher,
    ends: Vec<u32>,
    left: usize,
    context: usize,
    start: Instant,
    first: Option<Instant>,
    pub queue: VecDeque<Token>,
    pub finish: Option<Finish>,
    /// What ended it otherwise, until its reader takes it.
    pub failure: Option<Error>,
    /// What its set amounts to, while it waits for a slot.
    pub mixture: Option<Mixture>,
    /// Steps that ran without it since it waits for a slot.
    pub waited: u32,
    pub timings: Timings,
}

/// The tokens that an answer begins with: an adapter's own, then the prompt's.
///
/// # Errors
/// The settings are out of range, the prompt is empty, or all of it does not fit the context.
pub(crate) fn checked_prompt(
    prompt: &[u32],
    virtual_ids: &[u32],
    request: &Request,
    context: usize,
) -> Result<Vec<u32>> {
    if let Some(problem) = request.sampling.problem() {
        return Err(Error::Request(problem));
    }
    if prompt.is_empty() {
        return Err(Error::Request("the prompt is empty".into()));
    }
    let tokens = [virtual_ids, prompt].concat();
    if tokens.len() >= context {
        return Err(Error::ContextFull {
            tokens: tokens.len() + 1,
            context,
        });
    }
    Ok(tokens)
}

impl Sequence {
    /// Ends the answer under way with an error for its reader.
    pub fn fail(&mut self, error: Error) {
        if let Some(answer) = &mut self.answer {
            answer.failure = Some(error);
        }
    }

    /// Begins an answer to checked tokens, the first `virtual_tokens` of which are an adapter's: keeps what the cache
    /// and they share, takes their pages.
    pub fn begin(
        &mut self,
        tokens: Vec<u32>,
        virtual_tokens: usize,
        mut answer: Answer,
        graph: &Graph,
        pool: &mut PagePool,
    ) -> Result<()> {
        let shared = self.tokens[..self.computed]
            .iter()
            .zip(&tokens)
            .take_while(|(a, b)| a == b)
            .count();
        let length = tokens.len() as u32;
        // The last token is always run: its row gives the first answer token. Keys that a prompt of this length would
        // rotate otherwise are of no use to it.
        let kept = match graph.rotates_alike(self.rope_length, length) {
            true => shared.min(tokens.len() - 1),
            false => 0,
        };
        self.keep(kept, pool);
        self.reserve(tokens.len(), pool)?;
        answer.timings.cached_tokens = kept.saturating_sub(virtual_tokens);
        if kept == 0 {
            self.rope_length = length;
            self.fixed = 0;
        }
        self.rope_limit = graph.rotation_limit(length);
        self.tokens = tokens;
        self.virtual_tokens = virtual_tokens;
        self.answer = Some(answer);
        Ok(())
    }

    /// Drops everything behind the first `count` tokens from the cache.
    pub fn keep(&mut self, count: usize, pool: &mut PagePool) {
        self.computed = self.computed.min(count);
        self.tokens.truncate(self.computed);
        let pages = BindOptions::pages_for(self.computed) as usize;
        pool.release(self.pages.drain(pages.min(self.pages.len())..));
    }

    /// Drops the whole cache, saying why where there is something to drop.
    pub fn forget(&mut self, reason: &str, pool: &mut PagePool) {
        if self.computed > 0 {
            let tokens = self.computed;
            tracing::warn!("a session's cache of {tokens} tokens is dropped: {reason}");
        }
        self.keep(0, pool);
    }

    /// Whether the session's set names an adapter.
    pub fn names(&self, id: AdapterId) -> bool {
        self.set.entries().iter().any(|(own, _)| *own == id)
    }

    /// Whether an answer is under way.
    pub fn is_answering(&self) -> bool {
        self.answer
            .as_ref()
            .is_some_and(|a| a.finish.is_none() && a.failure.is_none())
    }

    /// Makes room for `count` tokens in all.
    pub fn reserve(&mut self, count: usize, pool: &mut PagePool) -> Result<()> {
        let missing = (BindOptions::pages_for(count) as usize).saturating_sub(self.pages.len());
        self.pages.extend(pool.take(missing)?);
        Ok(())
    }

    /// Gives back pages behind its last token.
    pub fn trim(&mut self, pool: &mut PagePool) {
        let pages = BindOptions::pages_for(self.tokens.len()) as usize;
        pool.release(self.pages.drain(pages.min(self.pages.len())..));
    }

    /// Tokens that a step may run now.
    pub fn waiting(&self) -> Waiting {
        let rows = match &self.answer {
            Some(a) if a.finish.is_none() && a.failure.is_none() && a.queue.len() < QUEUE => {
                self.tokens.len() - self.computed
            }
            _ => 0,
        };
        Waiting {
            from: self.computed,
            rows,
        }
    }

    /// What comes behind the token that the row of the last one gives.
    pub fn next(&self) -> Next {
        let Some(answer) = self.answer.as_ref().filter(|_| self.is_answering()) else {
            return Next::Ends;
        };
        let length = self.tokens.len() + 1;
        let anew = self.rope_limit.is_some_and(|limit| length as u32 > limit);
        match () {
            () if !answer.sampler.is_argmax() => Next::Waits,
            () if answer.left <= 1 || length >= answer.context => Next::Ends,
            () if anew || answer.queue.len() + 1 >= QUEUE => Next::Waits,
            () => Next::Goes,
        }
    }

    /// What the row of the last token is run for.
    pub fn want(&self) -> Want {
        match &self.answer {
            Some(a) if a.sampler.is_argmax() => Want::ArgMax,
            _ => Want::Logits,
        }
    }

    /// Takes the result of the last token's row: the next token, and the end where it has come.
    ///
    /// A failure ends this answer alone and waits for its reader.
    pub fn advance(&mut self, result: RowResult, pool: &mut PagePool) {
        if let Err(error) = self.try_advance(result, pool)
            && let Some(answer) = &mut self.answer
        {
            answer.failure = Some(error);
        }
    }

    fn try_advance(&mut self, result: RowResult, pool: &mut PagePool) -> Result<()> {
        let Some(answer) = &mut self.answer else {
            return Ok(());
        };
        let not_finite = Error::NotFinite {
            tokens: self.tokens.len(),
        };
        let next = match result {
            RowResult::Token(token) => token,
            RowResult::Logits(mut logits) => {
                if !settle(&mut logits) {
                    return Err(not_finite);
                }
                let history = History {
                    tokens: &self.tokens[self.virtual_tokens..],
                    prompt: answer.timings.prompt_tokens,
                };
                answer.sampler.choose(&mut logits, history)
            }
            RowResult::Hidden(_) => return Ok(()),
            RowResult::NotFinite => return Err(not_finite),
        };
        answer.take(next)?;
        if answer.finish.is_some() {
            return Ok(());
        }
        self.tokens.push(next);
        if self.tokens.len() >= answer.context {
            return answer.end(Finish::Context);
        }
        let length = self.tokens.len() as u32;
        if self.rope_limit.is_some_and(|limit| length > limit) {
            tracing::debug!("{length} tokens: keys are made anew for a long context");
            self.computed = self.fixed;
            self.rope_length = length;
            self.rope_limit = None;
        }
        self.reserve(self.tokens.len(), pool)
    }
}

/// Makes lanes that are no numbers as unlikely as can be, as an argmax on a device takes them; whether the largest is finite, as
/// it wants it, too.
fn settle(logits: &mut [f32]) -> bool {
    let mut top = f32::NEG_INFINITY;
    for lane in logits {
        if lane.is_nan() {
            *lane = f32::NEG_INFINITY;
        }
        top = top.max(*lane);
    }
    top.is_finite()
}

impl Answer {
    /// An answer to a request with a prompt of `prompt_tokens` tokens, in a context of `context` tokens.
    pub fn new(
        request: &Request,
        tokenizer: Option<&Tokenizer>,
        context: usize,
        prompt_tokens: usize,
    ) -> Self {
        Self {
            number: 0,
            sampler: Sampler::new(&request.sampling),
            stream: tokenizer.map(|t| t.stream(true)),
            stop: StopMatcher::new(&request.stop),
            ends: match tokenizer {
                Some(t) if request.stop_at_end => t.eos_ids().to_vec(),
                _ => vec![],
            },
            left: request.max_tokens,
            context,
            start: Instant::now(),
            first: None,
            queue: VecDeque::new(),
            finish: (request.max_tokens == 0).then_some(Finish::Length),
            failure: None,
            mixture: None,
            waited: 0,
            timings: Timings {
                prompt_tokens,
                ..Timings::default()
            },
        }
    }

    /// Takes the next token: puts its text into the queue, or ends the answer.
    fn take(&mut self, token: u32) -> Result<()> {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        self.timings.ttft_s = (first - self.start).as_secs_f64();
        if self.ends.contains(&token) {
            return self.end(Finish::End);
        }
        self.timings.decode_s = (now - first).as_secs_f64();
        self.timings.generated += 1;
        self.left -= 1;
        let piece = match &mut self.stream {
            Some(stream) => stream.push(token)?.unwrap_or_default(),
            None => String::new(),
        };
        let (text, stopped) = self.stop.push(&piece);
        self.queue.push_back(Token {
            id: Some(token),
            text,
        });
        if stopped {
            self.finish = Some(Finish::Stop);
        } else if self.left == 0 {
            self.end(Finish::Length)?;
        }
        Ok(())
    }

    /// Ends the answer with the text that was held back: a character that is not whole, what might have been a stop text.
    fn end(&mut self, finish: Finish) -> Result<()> {
        let rest = match &mut self.stream {
            Some(stream) => stream.finish()?,
            None => String::new(),
        };
        let (mut text, stopped) = self.stop.push(&rest);
        text.push_str(&self.stop.finish());
        if !text.is_empty() {
            self.queue.push_back(Token { id: None, text });
        }
        self.finish = Some(if stopped { Finish::Stop } else { finish });
        Ok(())
    }
}
