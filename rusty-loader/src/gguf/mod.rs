//! GGUF, versions 2 and 3, little-endian: our own parser over a mapping.
//!
//! [`Gguf`] is the container as the file states it: keys, tensor descriptions, bytes. Parsing reads the
//! header only and trusts nothing in it: every count is held against the bytes left before anything is
//! allocated, sizes are computed with overflow checks, and tensors must lie inside the file, aligned and
//! disjoint. [`open`](crate::open) gives the container the canonical keys of a [`ModelFile`](crate::ModelFile).
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod cursor;
pub(crate) mod model;
mod parse;
pub(crate) mod split;
mod types;
pub mod write;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use crate::{Error, Meta, Result, SharedBytes};

pub use types::TensorType;

/// A parsed GGUF container.
#[derive(Debug)]
pub struct Gguf {
    /// Version of the file, 2 or 3.
    pub version: u32,
    /// Alignment of the tensors' offsets in bytes.
    pub alignment: u64,
    /// Where the tensor data begins in the file.
    pub data_start: u64,
    /// Keys and values as the file spells them.
    pub meta: HashMap<String, Meta>,
    /// Tensors in the file's order.
    pub tensors: Vec<TensorInfo>,
    /// Keys in the file's order, and where the type and value of each lie.
    keys: Vec<(String, Range<usize>)>,
    bytes: SharedBytes,
    /// The other files of a model in several.
    others: Vec<Part>,
}

/// A further file of a model in several.
#[derive(Debug)]
struct Part {
    data_start: u64,
    bytes: SharedBytes,
}

/// Description of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Type in the file, supported or not.
    pub kind: &'static TensorType,
    /// Logical shape, outermost first (the file states it innermost first).
    pub shape: Vec<u64>,
    /// Start in bytes from where the tensor data of its file begins.
    pub offset: u64,
    /// Size in bytes.
    pub len: u64,
    /// Which file of a model in several it lies in, from 0 on.
    part: usize,
}

impl Gguf {
    /// Maps a file and parses its header; needs neither weights nor a known architecture, so that it also
    /// serves vocabulary-only files. Of a model in several files it takes the first, and maps the others.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Malformed`] with what is wrong and where.
    pub fn open(path: &Path) -> Result<Self> {
        split::join(path, Self::from_bytes(path, SharedBytes::map_file(path)?)?)
    }

    /// Parses bytes that are already at hand; `path` names them in errors.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(path: &Path, bytes: SharedBytes) -> Result<Self> {
        parse::parse(bytes).map_err(|reason| Error::malformed(path, reason))
    }

    /// Keys in the file's order, each with the stored bytes of its type and value: what a copy must hold to say the same,
    /// text that is no UTF-8 included.
    pub fn stored_keys(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let all: &[u8] = &self.bytes;
        self.keys
            .iter()
            .map(move |(key, range)| (key.as_str(), &all[range.clone()]))
    }

    /// The stored bytes of one of this container's tensors.
    pub fn tensor_bytes(&self, info: &TensorInfo) -> Option<SharedBytes> {
        let (bytes, data_start) = match info.part.checked_sub(1) {
            None => (&self.bytes, self.data_start),
            Some(other) => {
                let other = self.others.get(other)?;
                (&other.bytes, other.data_start)
            }
        };
        let start = data_start.checked_add(info.offset)?;
        let end = start.checked_add(info.len)?;
        bytes.slice(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}
