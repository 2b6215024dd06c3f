//! What a GPU does for a compiler: memory, pipelines, recorded launches, results. Whatever the device does at the same time,
//! all that can be seen of it is one queue, in order.

use crate::memory::{Owner, Usage};
use crate::{DeviceBuffer, Error, KernelText, Launch, Pipeline, Recording, Result, Target};
use std::any::Any;
use std::fmt;

/// A range of a buffer that is to come back to the host.
#[derive(Debug)]
pub struct Fetch<'a> {
    /// The buffer.
    pub buffer: &'a DeviceBuffer,
    /// First byte: offset and length as for [`GpuDevice::write`].
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

impl Fetch<'_> {
    /// Checks that the range lies inside its buffer and can be copied.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn check(&self) -> Result<()> {
        self.buffer.check_transfer(self.offset, self.len as u64)
    }

    /// What fetching `ranges` is called in errors.
    #[cfg(feature = "gpu")]
    pub(crate) fn call(ranges: &[Fetch<'_>]) -> String {
        let labels: Vec<&str> = ranges.iter().map(|range| range.buffer.label()).collect();
        format!("read {}", labels.join(", "))
    }
}

/// Ranges that are on their way to the host: [`GpuDevice::receive`] waits for them. Dropped, they come to nobody.
pub struct Pending {
    raw: Box<dyn Any + Send>,
    lengths: Vec<usize>,
}

impl Pending {
    /// Wraps what a device keeps until `ranges` are there; for implementations of [`GpuDevice`].
    pub fn new(raw: Box<dyn Any + Send>, ranges: &[Fetch<'_>]) -> Self {
        Self {
            raw,
            lengths: ranges.iter().map(|range| range.len).collect(),
        }
    }

    /// What the device keeps, where `out` has as many bytes for each range as it has.
    ///
    /// # Errors
    /// [`Error::Received`] where it has not, [`Error::Foreign`] where another kind of device made it.
    pub fn into_raw<T: 'static>(self, out: &[&mut [u8]]) -> Result<T> {
        let room: Vec<usize> = out.iter().map(|out| out.len()).collect();
        if room != self.lengths {
            return Err(Error::Received {
                fetched: self.lengths,
                room,
            });
        }
        let raw = self.raw.downcast().map_err(|_| Error::Foreign {
            what: "what is on its way to the host".into(),
        })?;
        Ok(*raw)
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({:?} bytes)", self.lengths)
    }
}

/// An opened GPU. Calls may come from any thread; work runs in the order of the calls.
pub trait GpuDevice: Send + Sync + fmt::Debug {
    /// Its facts.
    fn target(&self) -> &Target;

    /// `bytes` of zeroed device memory, booked for `owner`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`].
    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer>;

    /// Copies `data` to `offset`, after every earlier submission that binds the buffer and before every later one. Large
    /// data streams through a bounded staging ring; weights may travel beside launches that do not bind them. `offset` is
    /// a multiple of 4, and so is the length unless it ends the buffer.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Foreign`] for a buffer of another kind of
    /// device, [`Error::OutOfMemory`] where there is no room for the ring,
    /// [`Error::Driver`] or [`Error::Lost`].
    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()>;

    /// Makes a pipeline of a text; texts may be compiled on many threads at once.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the compiler's log; [`Error::OutOfMemory`] where
    /// there is no room for its code.
    fn pipeline(&self, text: &KernelText) -> Result<Pipeline>;

    /// Makes launches ready to be enqueued as one unit: prebuilt bind groups for one compute pass under wgpu, a
    /// graph under CUDA. Launches see the writes of those before them.
    ///
    /// # Errors
    /// As [`Launch::check`]; [`Error::Foreign`], [`Error::OutOfMemory`],
    /// [`Error::Driver`], [`Error::Lost`].
    fn record(&self, launches: &[Launch]) -> Result<Recording>;

    /// Enqueues a recording; returns before it has run.
    ///
    /// # Errors
    /// [`Error::Driver`] or [`Error::Lost`], also for what failed earlier;
    /// [`Error::Foreign`] for a recording of another kind of device.
    fn submit(&self, recording: &Recording) -> Result<()>;

    /// Enqueues launches once, where a recording would not be used again.
    ///
    /// # Errors
    /// As [`GpuDevice::record`] and [`GpuDevice::submit`].
    fn run(&self, launches: &[Launch]) -> Result<()> {
        self.submit(&self.record(launches)?)
    }

    /// Enqueues a recording where one is given, and behind it and all launches before it the copies of ranges to the host;
    /// returns before any of it has run. Under wgpu the launches, the copies and the small writes before them are one
    /// submission; under CUDA the copies follow the graph into pinned memory.
    ///
    /// # Errors
    /// As [`GpuDevice::submit`]; [`Error::Range`], [`Error::Foreign`] for a
    /// buffer of another kind of device, [`Error::OutOfMemory`] where there is no room to copy
    /// through; nothing was enqueued then.
    fn fetch(&self, behind: Option<&Recording>, ranges: &[Fetch<'_>]) -> Result<Pending>;

    /// Waits for fetched ranges and copies them to `out`, each to its own place, which is as long.
    ///
    /// # Errors
    /// As [`Pending::into_raw`]; [`Error::Driver`] or [`Error::Lost`], also for what
    /// failed earlier.
    fn receive(&self, pending: Pending, out: &mut [&mut [u8]]) -> Result<()>;

    /// Waits for all launches so far, then copies from `offset` into `out`: offset and length as for [`GpuDevice::write`].
    ///
    /// # Errors
    /// As [`GpuDevice::fetch`].
    fn read_into(&self, buffer: &DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = Fetch {
            buffer,
            offset,
            len: out.len(),
        };
        let pending = self.fetch(None, &[range])?;
        self.receive(pending, &mut [out])
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
    /// [`Error::Range`], [`Error::Foreign`] for a buffer of another kind of
    /// device, [`Error::Driver`] or [`Error::Lost`].
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
    /// [`Error::Driver`] or [`Error::Lost`], also for what failed earlier.
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
