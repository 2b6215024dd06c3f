//! Adapter files and their way into the compiler's slot tables.

mod random;

pub use random::random;
