//! What a GPU does for a compiler: memory, pipelines, recorded launches, results. Whatever the device does at the same time,
//! all that can be seen of it is one queue, in order.

use crate::memory::{Owner, Usage};
use crate::{DeviceBuffer, KernelText, Launch, Pipeline, Recording, Result, Target};
use std::fmt;

/// A range of a buffer that is to come back to the host.
#[derive(Debug)]
pub struct Fetch<'a> {
    /// The buffer.
    pub buffer: &'a DeviceBuffer,
    /// First byte: offset and length as for [`GpuDevice::write`].
    pub offset: u64,
    /// Where it goes; as long as the range.
    pub out: &'a mut [u8],
}

impl Fetch<'_> {
    /// Checks that the range lies inside its buffer and can be copied.
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range).
    pub fn check(&self) -> Result<()> {
        self.buffer
            .check_transfer(self.offset, self.out.len() as u64)
    }

    /// What fetching `ranges` is called in errors.
    #[cfg(feature = "gpu")]
    pub(crate) fn call(ranges: &[Fetch<'_>]) -> String {
        let labels: Vec<&str> = ranges.iter().map(|range| range.buffer.label()).collect();
        format!("read {}", labels.join(", "))
    }
}

/// An opened GPU. Calls may come from any thread; work runs in the order of the calls.
pub trait GpuDevice: Send + Sync + fmt::Debug {
    /// Its facts.
    fn target(&self) -> &Target;

    /// `bytes` of zeroed device memory, booked for `owner`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::TooLarge`](crate::Error::TooLarge).
    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer>;

    /// Copies `data` to `offset`, after every earlier submission that binds the buffer and before every later one. Large
    /// data streams through a bounded staging ring; weights may travel beside launches that do not bind them. `offset` is
    /// a multiple of 4, and so is the length unless it ends the buffer.
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range), [`Error::Foreign`](crate::Error::Foreign) for a buffer of another kind of
    /// device, [`Error::OutOfMemory`](crate::Error::OutOfMemory) where there is no room for the ring,
    /// [`Error::Driver`](crate::Error::Driver) or [`Error::Lost`](crate::Error::Lost).
    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()>;

    /// Makes a pipeline of a text; texts may be compiled on many threads at once.
    ///
    /// # Errors
    /// [`Error::Kernel`](crate::Error::Kernel) with the compiler's log; [`Error::OutOfMemory`](crate::Error::OutOfMemory) where
    /// there is no room for its code.
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

    /// Enqueues a recording where one is given, waits until it and all launches before it have run, and copies ranges back.
    /// Under wgpu the launches, the copies and the small writes before them are one submission; under CUDA the copies follow
    /// the graph into pinned memory.
    ///
    /// # Errors
    /// As [`GpuDevice::submit`]; [`Error::Range`](crate::Error::Range), [`Error::Foreign`](crate::Error::Foreign) for a
    /// buffer of another kind of device, [`Error::OutOfMemory`](crate::Error::OutOfMemory) where there is no room to copy
    /// through; nothing was enqueued then.
    fn fetch(&self, behind: Option<&Recording>, ranges: &mut [Fetch<'_>]) -> Result<()>;

    /// Waits for all launches so far, then copies from `offset` into `out`: offset and length as for [`GpuDevice::write`].
    ///
    /// # Errors
    /// As [`GpuDevice::fetch`].
    fn read_into(&self, buffer: &DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = Fetch {
            buffer,
            offset,
            out,
        };
        self.fetch(None, &mut [range])
    }

    /// Waits for all launches so far, then returns `len` bytes from `offset`, a multiple of 4.
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

    /// What the driver's queue was handed since the device was opened: submissions under wgpu, graphs and launches that are in
    /// none under CUDA.
    fn submissions(&self) -> u64;

    /// Bytes in use, by owner.
    fn usage(&self) -> Usage;

    /// Keeps what the driver compiled for the next process, where the device can; called after the last
    /// [`GpuDevice::pipeline`] of a load.
    fn keep_pipelines(&self) {}
}
