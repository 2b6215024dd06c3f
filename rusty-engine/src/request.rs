//! What a session is asked for, and what it gives.

use crate::sampler::Sampling;

/// One generation.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to continue.
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens at most.
    pub max_tokens: usize,
    /// Texts before which the answer ends.
    pub stop: Vec<String>,
    /// Whether the model's end tokens end the answer.
    pub stop_at_end: bool,
}

impl Request {
    /// A greedy request for a prompt.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            sampling: Sampling::default(),
            max_tokens: 256,
            stop: vec![],
            stop_at_end: true,
        }
    }
}

/// What to continue.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Token ids as they are.
    Tokens(Vec<u32>),
    /// Text, with the special tokens that the model expects in front.
    Text(String),
    /// A conversation, rendered by the model's chat template.
    Chat(Vec<Message>),
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: &str, content: &str) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The token, or none where only held-back text is given at the end.
    pub id: Option<u32>,
    /// Text that became certain with it: whole characters, no part of a stop text. May be empty.
    pub text: String,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model's end token.
    End,
    /// A stop text.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
}

/// Times and counts of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose keys and values were still in the cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated: usize,
    /// Seconds from the request to the first token.
    pub ttft_s: f64,
    /// Seconds from the first token to the last.
    pub decode_s: f64,
}

impl Timings {
    /// Prompt tokens run per second.
    pub fn prefill_tok_s(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.ttft_s)
    }

    /// Tokens per second after the first.
    pub fn decode_tok_s(&self) -> f64 {
        rate(self.generated.saturating_sub(1), self.decode_s)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}
