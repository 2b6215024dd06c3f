//! The `rusty` command.
fn main() {}
