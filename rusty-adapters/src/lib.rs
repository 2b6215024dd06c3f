//! Adapter files and their way into the compiler's slot tables.
//!
//! [`load`] reads a PEFT folder against a graph's sites; [`combine`] makes a weighted sum of several adapters
//! one; [`random()`] makes adapters for measuring speed.

mod combine;
mod config;
pub mod error;
mod peft;
mod random;

pub use combine::combine;
pub use error::{Error, Result};
pub use peft::{from_bytes, load};
pub use random::random;
