//! Bytes that many owners may hold without copying: a range of a file mapping or of a heap buffer, or of bytes that a rule makes
//! when they are first read.

use std::borrow::Cow;
use std::fs::File;
use std::ops::{Deref, DerefMut, Range};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use memmap2::{Mmap, MmapMut};

use crate::random::Pattern;
use crate::{Error, Result};

/// A cheaply cloned range of bytes that keeps its owner (a file mapping, a heap buffer) alive.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
    source: Source,
}

/// Where bytes come from.
#[derive(Clone)]
enum Source {
    /// They are at hand.
    Memory,
    /// The system brings them from a file.
    File(Arc<Mmap>),
    /// They are made by a rule.
    Rule(Arc<Pattern>),
}

impl SharedBytes {
    /// Maps a whole file; nothing of it is read yet.
    ///
    /// # Errors
    /// Where the file cannot be opened or mapped.
    pub fn map_file(path: &Path) -> Result<Self> {
        let map = || {
            let file = File::open(path)?;
            if file.metadata()?.is_dir() {
                return Err(std::io::ErrorKind::IsADirectory.into());
            }
            // SAFETY: the mapping is private and read-only. As for every user of mmap, another process
            // that truncates the file while it is mapped ends this one; model files are written once.
            unsafe { Mmap::map(&file) }
        };
        let mapping = map().map_err(|e| Error::io(path, e))?;
        Ok(Self::from_mapping(Arc::new(mapping)))
    }

    /// The whole of a file mapping; its pages are the file's and are not counted as excess memory.
    pub fn from_mapping(mapping: Arc<Mmap>) -> Self {
        let len = mapping.len();
        Self {
            owner: Arc::new(MappingOwner(mapping.clone())),
            range: 0..len,
            source: Source::File(mapping),
        }
    }

    /// Bytes that a pattern makes in `pages` when they are first read.
    pub fn promised(pattern: Arc<Pattern>, pages: PageBuffer) -> Self {
        let (range, rule) = (0..pages.len(), pattern.clone());
        let make: Make = Box::new(move || {
            let mut pages = pages;
            rule.fill(&mut pages);
            pages
        });
        Self {
            owner: Arc::new(Promised(LazyLock::new(make))),
            range,
            source: Source::Rule(pattern),
        }
    }

    /// Takes a heap buffer over.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self {
            owner: Arc::new(bytes),
            range: 0..len,
            source: Source::Memory,
        }
    }

    /// Takes any owner of bytes over (for example an aligned buffer of words).
    pub fn from_owner(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let len = (*owner).as_ref().len();
        Self {
            owner,
            range: 0..len,
            source: Source::Memory,
        }
    }

    /// A sub-range of this range, or `None` where it would leave it.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end).then(|| Self {
            owner: self.owner.clone(),
            range: start..end,
            source: self.source.clone(),
        })
    }

    /// The bytes of a sub-range, or `None` where it would leave this one. Of promised bytes no others are made.
    pub fn part(&self, range: Range<usize>) -> Option<Cow<'_, [u8]>> {
        let part = self.slice(range.clone())?;
        Some(match &self.source {
            Source::Rule(pattern) => {
                let mut made = vec![0; part.len()];
                pattern.fill_part(part.range.start, &mut made);
                Cow::Owned(made)
            }
            Source::Memory | Source::File(_) => Cow::Borrowed(&self[range]),
        })
    }

    /// Lets the system drop the resident pages of this range where they are a mapped file's; they come
    /// back from the file when read again. Used behind a copy, so that both are never resident.
    pub fn release_pages(&self) {
        #[cfg(unix)]
        if let Source::File(mapping) = &self.source {
            // Whole pages inside the range only: neighbours may be in use.
            const PAGE: usize = 1 << 16;
            let start = self.range.start.next_multiple_of(PAGE);
            let end = self.range.end / PAGE * PAGE;
            if start < end {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                // SAFETY: the mapping is a file's, private and never written, so a dropped page is read
                // from the file again with the same contents.
                let _ = unsafe { mapping.unchecked_advise_range(advice, start, end - start) };
            }
        }
    }

    /// Tells the system that this range of a mapped file will be read soon, so that it reads ahead.
    pub fn expect_pages(&self) {
        #[cfg(unix)]
        if let Source::File(mapping) = &self.source {
            let (start, len) = (self.range.start, self.range.len());
            // Advice alone: where it is refused, pages come when they are read.
            let _ = mapping.advise_range(memmap2::Advice::WillNeed, start, len);
        }
    }

    /// Whether the bytes are pages of a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.source, Source::File(_))
    }

    /// Of promised bytes the pattern that makes them, and the number of the first of these among the pattern's: whoever follows it
    /// need not read them, and what nobody reads is never made.
    pub fn pattern(&self) -> Option<(&Pattern, usize)> {
        match &self.source {
            Source::Rule(pattern) => Some((pattern, self.range.start)),
            Source::Memory | Source::File(_) => None,
        }
    }

    /// How many bytes they are, without reading any.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
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
            self.is_mapped()
        )
    }
}

struct MappingOwner(Arc<Mmap>);

impl AsRef<[u8]> for MappingOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes that are made when they are first read.
struct Promised(LazyLock<PageBuffer, Make>);

/// Makes bytes, once.
type Make = Box<dyn FnOnce() -> PageBuffer + Send>;

impl AsRef<[u8]> for Promised {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A zeroed, page-aligned buffer that becomes [`SharedBytes`] once it is filled.
///
/// Its pages are first touched by whoever writes them, so that filling in parallel is parallel throughout. What is as long as a huge
/// page begins where one does: elsewhere its first part would have small ones.
pub struct PageBuffer {
    pages: MmapMut,
    range: Range<usize>,
}

impl PageBuffer {
    /// Bytes of a huge page.
    pub const HUGE: usize = 2 << 20;

    /// A buffer of `len` zero bytes.
    ///
    /// # Errors
    /// Where the system does not grant the memory; `label` names the model that asked.
    pub fn new(len: usize, label: &str) -> Result<Self> {
        let refuse = |reason: &dyn std::fmt::Display| {
            let reason = format!("cannot allocate {len} bytes: {reason}");
            Error::malformed(Path::new(label), reason)
        };
        let spare = if len < Self::HUGE { 0 } else { Self::HUGE };
        let whole = len.checked_add(spare);
        let whole = whole.ok_or_else(|| refuse(&"there are not so many"))?;
        let pages = MmapMut::map_anon(whole).map_err(|e| refuse(&e))?;
        let start = pages.as_ptr().align_offset(Self::HUGE).min(spare);
        let range = start..start + len;
        // Not the rest, which would be one that is hardly used.
        #[cfg(target_os = "linux")]
        let _ = pages.advise_range(
            memmap2::Advice::HugePage,
            start,
            len / Self::HUGE * Self::HUGE,
        );
        Ok(Self { pages, range })
    }

    /// The filled buffer, to be shared.
    pub fn freeze(self) -> SharedBytes {
        SharedBytes::from_owner(Arc::new(self))
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages[self.range.clone()]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages[self.range.clone()]
    }
}

impl AsRef<[u8]> for PageBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
