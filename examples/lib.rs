//! Examples of using the crates from other programs: `cargo run --release -p rusty-examples --example NAME`.
//!
//! * `generate`: load a model, ask, stream the answer.
//! * `experts`: several adapters answer in one batch, each session with its own.
//! * `plan`: what the compiler makes of a model for a machine that is not there.
