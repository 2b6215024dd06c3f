//! Examples of using the crates.
