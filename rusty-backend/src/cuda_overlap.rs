//! The name by which CUDA texts wait for the launches before theirs: devices launch kernels that have it early.

/// A macro of texts whose kernels may begin while the one before them in a graph ends, and that they have where they wait for it.
pub const AWAIT: &str = "RUSTY_AWAIT_EARLIER";
