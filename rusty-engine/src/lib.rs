//! Sessions, scheduling, paged KV, sampling, text in and out.
//!
//! An [`Engine`] is a model bound to a device. [`Session`]s share it: each has its own tokens, pages and adapter,
//! and their rows run together in ragged steps. Results do not depend on who else is there, but for what a GPU
//! rounds otherwise where rows are few or many: products of bytes and of matrix units, which
//! [`EngineOptions::single_precision`] leaves out.

pub mod adapters;
pub mod bound;
mod core;
pub mod demo;
pub mod divergence;
#[cfg(test)]
mod echo;
mod engine;
pub mod error;
pub mod experts;
pub mod pages;
pub mod perplexity;
pub mod request;
mod rows;
pub mod sampler;
mod scheduler;
mod sequence;
mod session;
pub mod stop;
pub mod throughput;

pub use adapters::{
    AdapterBudget, AdapterId, AdapterMemory, AdapterSet, AdapterStatus, OnRunning, Tier,
};
pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use request::{Finish, Message, Prompt, Request, Timings, Token};
pub use sampler::{Sampling, Stage};
pub use session::{Generation, Session};
