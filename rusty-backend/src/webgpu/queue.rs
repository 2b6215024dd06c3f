//! The queue of a device, which counts what it is handed.

use std::sync::atomic::{AtomicU64, Ordering};
use wgpu::{Buffer, CommandBuffer, SubmissionIndex};

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    queue: wgpu::Queue,
    submissions: AtomicU64,
}

impl Queue {
    pub(super) fn new(queue: wgpu::Queue) -> Self {
        Self {
            queue,
            submissions: AtomicU64::new(0),
        }
    }

    /// Hands commands to the driver, the small writes that wait before them.
    pub(super) fn submit(
        &self,
        commands: impl IntoIterator<Item = CommandBuffer>,
    ) -> SubmissionIndex {
        self.submissions.fetch_add(1, Ordering::Relaxed);
        self.queue.submit(commands)
    }

    /// A small write. wgpu keeps it and hands it to the driver with the next submission.
    pub(super) fn write(&self, to: &Buffer, offset: u64, data: &[u8]) {
        self.queue.write_buffer(to, offset, data);
    }

    /// Submissions so far.
    pub(super) fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }
}
