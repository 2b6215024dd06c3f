//! Why a graph could not be built, parsed, verified or interpreted.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A graph error, naming the architecture, key, tensor, node or line it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No builder for this architecture.
    #[error("{model}: architecture '{arch}' is not supported; supported: {supported}")]
    UnknownArch {
        /// Model label.
        model: String,
        /// Its architecture.
        arch: String,
        /// Known ids.
        supported: String,
    },
    /// Metadata is missing or unusable.
    #[error("{model}: metadata '{key}' {reason}")]
    Meta {
        /// Model label.
        model: String,
        /// Canonical key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor is missing or has another shape.
    #[error("{model}: tensor '{tensor}' {reason}")]
    Tensor {
        /// Model label.
        model: String,
        /// Canonical name.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// An invariant of the graph does not hold.
    #[error("graph: {node}: {reason}")]
    Invalid {
        /// Node or value.
        node: String,
        /// The invariant.
        reason: String,
    },
    /// Graph text could not be parsed.
    #[error("graph text, line {line}: {reason}")]
    Parse {
        /// 1-based.
        line: usize,
        /// What was expected.
        reason: String,
    },
    /// What was given to the interpreter does not fit the graph.
    #[error("{what}: {reason}")]
    Input {
        /// Operand.
        what: String,
        /// What is wrong.
        reason: String,
    },
}
