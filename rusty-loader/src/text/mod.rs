//! Text: tokenizers, incremental detokenizing and chat templates.
//!
//! One [`Tokenizer`] type serves a `tokenizer.json` and a vocabulary inside a GGUF; the latter is stated in
//! the `tokenizers` crate's own description and built by it, so both run the same code.

mod gguf_vocab;
mod pre_tokenizers;
mod python_syntax;
mod special_tokens;
mod template;
mod template_limits;
mod tokenizer;

pub use template::{ChatTemplate, Render};
pub use tokenizer::{TokenStream, Tokenizer};
