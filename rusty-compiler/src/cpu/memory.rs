//! Aligned zeroed memory that threads share by pointer, and giving mapped pages back.

use rusty_loader::{PageBuffer, SharedBytes};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Allocations from this size on are of huge pages: weights are streamed, and with small pages the TLB walks show.
const HUGE: usize = PageBuffer::HUGE;

/// Zeroed memory, aligned for vectors. Pages become resident when they are first written.
///
/// Kernels write disjoint parts of it from several threads, so access is by raw pointer.
pub(super) struct Buffer {
    ptr: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

enum Owner {
    Heap(Layout),
    /// Keeps the pages; read by nobody.
    Pages(#[allow(dead_code)] PageBuffer),
}

// SAFETY: plain memory; who may touch which part when is decided by the kernels' barriers.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// With a vector of slack.
fn padded(bytes: usize) -> usize {
    (bytes + 64).next_multiple_of(64)
}

impl Buffer {
    /// `bytes` zero bytes and a vector of slack behind them.
    pub(super) fn new(bytes: usize) -> Self {
        match Self::of_pages(bytes) {
            Some(buffer) => buffer,
            None => Self::of_heap(bytes),
        }
    }

    /// As [`Buffer::new`]; nothing where the system does not give so much.
    pub(super) fn reserved(bytes: usize) -> Option<Self> {
        match bytes < HUGE {
            true => Some(Self::of_heap(bytes)),
            false => Self::of_pages(bytes),
        }
    }

    /// Whole pages, where it is worth their while. An aligned allocation from the heap is zeroed by writing, and pages
    /// that are written before the system is told of huge ones stay small.
    fn of_pages(bytes: usize) -> Option<Self> {
        if bytes < HUGE {
            return None;
        }
        let size = padded(bytes);
        let mut pages = PageBuffer::new(size, "kernel memory").ok()?;
        Some(Self {
            ptr: NonNull::new(pages.as_mut_ptr())?,
            bytes: size,
            owner: Owner::Pages(pages),
        })
    }

    fn of_heap(bytes: usize) -> Self {
        let size = padded(bytes);
        let Ok(layout) = Layout::from_size_align(size, 64) else {
            handle_alloc_error(Layout::new::<u8>());
        };
        // SAFETY: the size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else {
            handle_alloc_error(layout)
        };
        Self {
            ptr,
            bytes: size,
            owner: Owner::Heap(layout),
        }
    }

    /// A buffer of `n` values of four bytes.
    pub(super) fn words(n: usize) -> Self {
        Self::new(n * 4)
    }

    /// First byte.
    pub(super) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// First value as single precision.
    pub(super) fn floats(&self) -> *mut f32 {
        self.ptr.as_ptr().cast()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Owner::Heap(layout) = self.owner {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.ptr.as_ptr(), layout) }
        }
    }
}

/// Tells the system that the pages of a mapped range are not needed: they leave this process and are read
/// again from the file if somebody touches them. Does nothing to bytes on the heap.
pub(super) fn release(bytes: &SharedBytes) {
    if bytes.is_mapped() {
        advise::release(bytes.as_ptr(), bytes.len());
    }
}

#[cfg(target_os = "linux")]
mod advise {
    use std::ffi::{c_int, c_void};

    const DONTNEED: c_int = 4;
    const PAGE: usize = 4096;

    unsafe extern "C" {
        fn madvise(addr: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    pub(super) fn release(ptr: *const u8, len: usize) {
        // Whole pages inside the range only: its neighbours are other tensors.
        let start = (ptr as usize).next_multiple_of(PAGE);
        let end = (ptr as usize + len) / PAGE * PAGE;
        if start < end {
            // SAFETY: the range is a read-only file mapping that its owner keeps alive; dropped pages come
            // back from the file.
            unsafe { madvise(start as *mut c_void, end - start, DONTNEED) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod advise {
    pub(super) fn release(_: *const u8, _: usize) {}
}
