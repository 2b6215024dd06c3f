//! What can go wrong between a path and a model, each naming the file and the reason.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read or mapped.
    #[error("{path}: {reason}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// The file is not what it claims to be.
    #[error("{path}: {reason}")]
    Malformed {
        /// File.
        path: PathBuf,
        /// What is wrong and where.
        reason: String,
    },
    /// The file is well formed but asks for something that is not supported.
    #[error("{path}: {what} is not supported; {hint}")]
    Unsupported {
        /// File.
        path: PathBuf,
        /// Format, architecture or version.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A model's name could not be turned into a path.
    #[error("model '{model}' {reason}")]
    Hub {
        /// What was asked for.
        model: String,
        /// What happened and what to do.
        reason: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, reason: std::io::Error) -> Self {
        Error::Io {
            path: path.into(),
            reason,
        }
    }

    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Error::Malformed {
            path: path.into(),
            reason: reason.into(),
        }
    }

    pub(crate) fn unsupported(
        path: &Path,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Error::Unsupported {
            path: path.into(),
            what: what.into(),
            hint: hint.into(),
        }
    }
}
