//! Dimensions: constants, and symbols with a maximum that planners may rely on.

use crate::SymId;

/// One extent of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Known when the graph is built.
    Const(u32),
    /// Known when a step runs; never above the symbol's maximum.
    Sym(SymId),
}

/// A symbolic dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// `T` for rows of a step, `L` for rows that want logits.
    pub name: String,
    /// Upper bound at run time.
    pub max: u32,
}
