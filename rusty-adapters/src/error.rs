//! Why an adapter could not be read or does not fit.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An adapter error, naming the file, tensor and shapes it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{path}: {reason}")]
    Io {
        /// File.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// A file is not what it claims to be.
    #[error("{path}: {reason}")]
    Malformed {
        /// File.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The adapter asks for something that is not supported.
    #[error("{path}: {what} is not supported")]
    Unsupported {
        /// File.
        path: PathBuf,
        /// Kind of adapter, setting or tensor.
        what: String,
    },
    /// A tensor fits no place of the model.
    #[error("{path}: tensor '{tensor}' has shape {shape:?}, {reason}")]
    Misfit {
        /// File.
        path: PathBuf,
        /// Tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What the model has there.
        reason: String,
    },
    /// What tensors are multiplied to fits no place of the model.
    #[error("{path}: the product of tensors {tensors} has shape {shape:?}, {reason}")]
    Product {
        /// File.
        path: PathBuf,
        /// Their names and shapes.
        tensors: String,
        /// The product's shape.
        shape: Vec<usize>,
        /// What the model has there.
        reason: String,
    },
    /// Adapters cannot be mixed as asked.
    #[error("adapters {adapters}: {reason}")]
    Mix {
        /// Their names.
        adapters: String,
        /// What stands in the way.
        reason: String,
    },
    /// A model or GGUF file could not be read.
    #[error(transparent)]
    Loader(#[from] rusty_loader::Error),
}

impl Error {
    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Error::Malformed {
            path: path.into(),
            reason: reason.into(),
        }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>) -> Self {
        Error::Unsupported {
            path: path.into(),
            what: what.into(),
        }
    }

    /// A tensor of a file has a format that cannot be written.
    pub(crate) fn unencoded(path: &Path, tensor: &str) -> Self {
        Error::malformed(path, format!("'{tensor}' cannot be encoded"))
    }
}
