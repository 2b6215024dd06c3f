//! Panels that are made when they are first used: those of routed experts, most of which many steps never take.

use super::memory::release;
use super::panel::PanelLayout;
use rusty_backend::UnifiedTensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A matrix of blocks, and room for its panels.
pub(super) struct LatePanels {
    bytes: UnifiedTensor,
    pub(super) layout: PanelLayout,
    /// Where its panels begin.
    at: *mut u8,
    made: Vec<AtomicBool>,
    left: AtomicUsize,
    /// Matrices of which all panels were made.
    finished: Arc<AtomicUsize>,
}

// SAFETY: the room behind `at` is this matrix's own and outlives it; a panel is written by the one thread that
// [`LatePanels::panel`] asks for.
unsafe impl Send for LatePanels {}
// SAFETY: as above.
unsafe impl Sync for LatePanels {}

impl LatePanels {
    /// `at` has room for all panels; `finished` is counted up when all are made.
    pub(super) fn new(
        bytes: UnifiedTensor,
        layout: PanelLayout,
        at: *mut u8,
        finished: Arc<AtomicUsize>,
    ) -> Self {
        let panels = layout.panels();
        Self {
            bytes,
            layout,
            at,
            made: (0..panels).map(|_| AtomicBool::new(false)).collect(),
            left: AtomicUsize::new(panels),
            finished,
        }
    }

    /// Where panel `i` is, or will be.
    pub(super) fn place(&self, i: usize) -> *mut u8 {
        self.at.wrapping_add(i * self.layout.panel_bytes())
    }

    /// Panel `i`, made if it was not.
    ///
    /// # Safety
    /// No other thread asks for this panel before the next barrier.
    pub(super) unsafe fn panel(&self, i: usize) -> *const u8 {
        let at = self.place(i);
        if !self.made[i].load(Ordering::Acquire)
            && let UnifiedTensor::Host(bytes) = &self.bytes
        {
            // SAFETY: the room is there and, by the caller's duty, this thread's.
            let panel = unsafe { std::slice::from_raw_parts_mut(at, self.layout.panel_bytes()) };
            self.layout.pack(bytes, i, panel);
            self.made[i].store(true, Ordering::Release);
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                release(bytes);
                self.finished.fetch_add(1, Ordering::Release);
            }
        }
        at
    }

    /// Whether all panels are made.
    pub(super) fn is_finished(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Bytes of the panels that were made, and of the file's blocks that were not read.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let (all, left) = (self.made.len(), self.left.load(Ordering::Acquire));
        let unread = self.bytes.byte_len() * left as u64 / all.max(1) as u64;
        (((all - left) * self.layout.panel_bytes()) as u64, unread)
    }

    /// Whether the blocks are pages of a file.
    pub(super) fn is_mapped(&self) -> bool {
        self.bytes.is_mapped()
    }
}
