//! What can go wrong between a request and its tokens.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An engine error, naming the model, session limit or setting it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model could not be read.
    #[error(transparent)]
    Loader(#[from] rusty_loader::Error),
    /// The network could not be stated.
    #[error(transparent)]
    Graph(#[from] rusty_graph::Error),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] rusty_backend::Error),
    /// The plan could not be made or run.
    #[error(transparent)]
    Compiler(#[from] rusty_compiler::Error),
    /// An adapter could not be read or does not fit.
    #[error(transparent)]
    Adapter(#[from] rusty_adapters::Error),
    /// The request cannot be served as it stands.
    #[error("{0}")]
    Request(String),
    /// All KV pages are in use.
    #[error(
        "the KV cache is full: {asked} pages of 16 tokens wanted, {free} of {total} free; \
         end a session or load with a larger context"
    )]
    CacheFull {
        /// Pages wanted.
        asked: usize,
        /// Pages free.
        free: usize,
        /// Pages in all.
        total: usize,
    },
    /// The sequence would be longer than the engine's context.
    #[error(
        "{tokens} tokens do not fit the context of {context}; shorten the prompt or raise the context"
    )]
    ContextFull {
        /// Tokens wanted.
        tokens: usize,
        /// Context.
        context: usize,
    },
    /// A row's logits overflowed or are no numbers.
    #[error(
        "the logits behind {tokens} tokens are not finite; \
         an adapter's weight is far too large, or the file is damaged (--check tells)"
    )]
    NotFinite {
        /// Tokens of the sequence.
        tokens: usize,
    },
    /// An expert's manifest cannot be used.
    #[error("{}: {reason}", path.display())]
    Expert {
        /// The manifest, or the folder where there should be some.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A test inference gave numbers that cannot be right.
    #[error(
        "{model}: the test inference failed: {reason}; the file is damaged or not what it claims to be"
    )]
    Check {
        /// Model label.
        model: String,
        /// What was found.
        reason: String,
    },
}
