//! Bytes that many owners may hold without copying: a range of a file mapping or of a heap buffer.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// A cheaply cloned range of bytes that keeps its owner (a file mapping, a heap buffer) alive.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
    mapped: bool,
}

impl SharedBytes {
    /// The whole of a file mapping; its pages are the file's and are not counted as excess memory.
    pub fn from_mapping(mapping: Arc<memmap2::Mmap>) -> Self {
        let len = mapping.len();
        Self {
            owner: Arc::new(MappingOwner(mapping)),
            range: 0..len,
            mapped: true,
        }
    }

    /// Takes a heap buffer over.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self {
            owner: Arc::new(bytes),
            range: 0..len,
            mapped: false,
        }
    }

    /// Takes any owner of bytes over (for example an aligned buffer of words).
    pub fn from_owner(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let len = (*owner).as_ref().len();
        Self {
            owner,
            range: 0..len,
            mapped: false,
        }
    }

    /// A sub-range of this range, or `None` where it would leave it.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end).then(|| Self {
            owner: self.owner.clone(),
            range: start..end,
            mapped: self.mapped,
        })
    }

    /// Whether the bytes are pages of a mapped file.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "SharedBytes({} bytes, mapped: {})",
            self.len(),
            self.mapped
        )
    }
}

struct MappingOwner(Arc<memmap2::Mmap>);

impl AsRef<[u8]> for MappingOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
