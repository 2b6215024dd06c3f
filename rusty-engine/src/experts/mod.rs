//! Experts: adapters that say for themselves which messages they are for, and routers that believe them.
//!
//! A [`Library`] is a folder of folders, each with an `expert.toml` ([`Manifest`]) that names an adapter. A
//! [`Router`] reads a message and makes a [`Choice`]: one expert, or the base model where none fits; [`Experts`] is a
//! library that answers on an engine. Being sent to an expert wrongly is worse than staying with the base: an expert
//! answers in its own language whatever it is asked. So both routers want a threshold passed and a distance kept, and
//! take the base in doubt.
//!
//! * [`KeywordRouter`] counts words. It costs microseconds, and is as good as the manifest's list.
//! * [`EmbeddingRouter`] compares the model's own hidden states with those of example messages. It costs a prefill of
//!   the message, and generalises as well as the model does.
//!
//! Limits: one expert per message, chosen from this message alone. Words are runs of letters and digits, compared
//! without case and without stems (`user` is not `users`); a language without spaces has none to compare, and wants
//! the embedding router. Openings of questions are known in English only. Worth measuring rather than assuming: the
//! embedding router's bounds, which were set on the demo model.

mod attached;
mod embedding;
mod keywords;
mod library;
mod manifest;
mod opening;
mod router;

pub use attached::Experts;
pub use embedding::EmbeddingRouter;
pub use keywords::KeywordRouter;
pub use library::{Expert, Library};
pub use manifest::{Keyword, Manifest};
pub use opening::Opening;
pub use router::{Choice, Router};
