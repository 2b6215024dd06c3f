//! The commands as a user runs them: arguments in, text, JSON, files and exit codes out.

mod adapters;
mod answers;
mod command;
mod conversations;
mod facts;
mod failures;
mod gpus;
mod packages;
mod quality;
mod rope;
