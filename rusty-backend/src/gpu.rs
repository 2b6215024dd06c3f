//! What a GPU does for a compiler: memory, pipelines, recorded launches. One queue, in order.

use crate::memory::{Owner, Usage};
use crate::{DeviceBuffer, KernelText, Launch, Pipeline, Recording, Result, Target};
use std::fmt;

/// An opened GPU. Calls may come from any thread; work runs in the order of the calls.
pub trait GpuDevice: Send + Sync + fmt::Debug {
    /// Its facts.
    fn target(&self) -> &Target;

    /// `bytes` of zeroed device memory, booked for `owner`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::TooLarge`](crate::Error::TooLarge).
    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer>;

    /// Copies `data` to `offset`, ordered before every later submission. Large data streams through a bounded
    /// staging ring. `offset` is a multiple of 4, and so is the length unless it ends the buffer.
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range), [`Error::Foreign`](crate::Error::Foreign) for a buffer of another kind of
    /// device, [`Error::OutOfMemory`](crate::Error::OutOfMemory) where there is no room for the ring,
    /// [`Error::Driver`](crate::Error::Driver) or [`Error::Lost`](crate::Error::Lost).
    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()>;

    /// Makes a pipeline of a text; texts may be compiled on many threads at once.
    ///
    /// # Errors
    /// [`Error::Kernel`](crate::Error::Kernel) with the compiler's log.
    fn pipeline(&self, text: &KernelText) -> Result<Pipeline>;

    /// Makes launches ready to be enqueued as one unit: prebuilt bind groups for one compute pass under wgpu, a
    /// graph under CUDA. Launches see the writes of those before them.
    ///
    /// # Errors
    /// As [`Launch::check`]; [`Error::Foreign`](crate::Error::Foreign), [`Error::OutOfMemory`](crate::Error::OutOfMemory),
    /// [`Error::Driver`](crate::Error::Driver), [`Error::Lost`](crate::Error::Lost).
    fn record(&self, launches: &[Launch]) -> Result<Recording>;

    /// Enqueues a recording; returns before it has run.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) or [`Error::Lost`](crate::Error::Lost), also for what failed earlier;
    /// [`Error::Foreign`](crate::Error::Foreign) for a recording of another kind of device.
    fn submit(&self, recording: &Recording) -> Result<()>;

    /// Enqueues launches once, where a recording would not be used again.
    ///
    /// # Errors
    /// As [`GpuDevice::record`] and [`GpuDevice::submit`].
    fn run(&self, launches: &[Launch]) -> Result<()> {
        self.submit(&self.record(launches)?)
    }

    /// Waits for everything enqueued, then copies from `offset` into `out`: offset and length as for [`GpuDevice::write`].
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range), [`Error::Foreign`](crate::Error::Foreign) for a buffer of another kind of
    /// device, [`Error::Driver`](crate::Error::Driver) or [`Error::Lost`](crate::Error::Lost).
    fn read_into(&self, buffer: &DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Waits for everything enqueued, then returns `len` bytes from `offset`, a multiple of 4.
    ///
    /// # Errors
    /// As [`GpuDevice::read_into`].
    fn read(&self, buffer: &DeviceBuffer, offset: u64, len: u64) -> Result<Vec<u8>> {
        buffer.check(offset, len)?;
        let mut out = vec![0; len as usize];
        self.read_into(buffer, offset, &mut out)?;
        Ok(out)
    }

    /// Enqueues a copy between buffers, or between ranges of one that do not overlap: offsets and length as for
    /// [`GpuDevice::write`].
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range), [`Error::Foreign`](crate::Error::Foreign) for a buffer of another kind of
    /// device, [`Error::Driver`](crate::Error::Driver) or [`Error::Lost`](crate::Error::Lost).
    fn copy(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &DeviceBuffer,
        to_offset: u64,
        len: u64,
    ) -> Result<()>;

    /// Waits for everything enqueued; reports what went wrong meanwhile.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) or [`Error::Lost`](crate::Error::Lost), also for what failed earlier.
    fn synchronize(&self) -> Result<()>;

    /// Bytes in use, by owner.
    fn usage(&self) -> Usage;

    /// Keeps what the driver compiled for the next process, where the device can; called after the last
    /// [`GpuDevice::pipeline`] of a load.
    fn keep_pipelines(&self) {}
}
