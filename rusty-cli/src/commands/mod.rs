//! One file per command.

pub mod adapter;
pub mod bench;
pub mod chat;
pub mod compile;
pub mod devices;
pub mod explain;
pub mod inspect;
pub mod logits;
pub mod perplexity;
pub mod quantize;
pub mod run;
pub mod tokenize;
