//! The choice, and the two ways to make it.

use super::embedding::EmbeddingRouter;
use super::keywords::KeywordRouter;
use super::library::Library;
use crate::Result;
use crate::engine::Engine;

/// Who answers a message, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Place of the expert among those given; none: the base model.
    pub expert: Option<usize>,
    /// The chosen expert's score; the best one where none was chosen.
    pub score: f32,
    /// All experts' scores, in the order given.
    pub scores: Vec<f32>,
    /// What decided, in a few words.
    pub reason: String,
}

/// Chooses an expert for each message.
#[derive(Clone)]
pub enum Router {
    /// By the words of the message.
    Keywords(KeywordRouter),
    /// By the model's hidden states.
    Embedding(EmbeddingRouter),
}

impl Router {
    /// A router over the library's keywords.
    pub fn keywords(library: &Library) -> Self {
        Self::Keywords(KeywordRouter::new(library.manifests()))
    }

    /// A router over the library's examples, as the model sees them.
    ///
    /// # Errors
    /// As [`EmbeddingRouter::new`].
    pub fn embedding(library: &Library, engine: &Engine) -> Result<Self> {
        Ok(Self::Embedding(EmbeddingRouter::new(
            library.manifests(),
            engine,
        )?))
    }

    /// Chooses an expert for a message, or the base.
    pub fn route(&self, message: &str) -> Choice {
        match self {
            Self::Keywords(router) => router.route(message),
            Self::Embedding(router) => router.route(message),
        }
    }
}
