//! Where the weights of kernels lie: on the device for good, or in windows through which they stream in each step.
//!
//! Nothing is uploaded before it is needed: a mapped file's bytes follow the first step, chunk by chunk, so that its
//! first layers run while later ones are still on their way. Where the device has not room for all, the last chunks
//! of the plan stay in the mapping and take turns in a window for each size. As soon as a window's kernels are submitted
//! the host copies its next chunk into the upload ring, a layer ahead of use, and has the system read the one after that.
//! Of experts all stream, those that a step does not take too.
//!
//! What a file does not hold comes at once: memory's bytes are uploaded, so that they need not be held, and promised ones the device
//! [makes](Maker) where they are to lie. Through windows all come from the host, so that streaming costs what it would with a file.
//!
//! What makes this right is the order of the calls: a chunk is written before the launches that bind its buffer, and a
//! window behind those that read what it held. What may overlap is for the device to say: under CUDA a chunk travels while
//! kernels of other buffers run, under wgpu copies and kernels take turns.

mod contents;

pub(super) use contents::Contents;

use super::random_weights::Maker;
use crate::upload::{Upload, UploadClock};
use crate::{Error, Result};
use rusty_backend::memory::Usage;
use rusty_backend::{DeviceBuffer, GpuDevice, Owner};
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// Where weights stream anyway, this part of the memory stays free for adapters that come later.
const LEFT_FREE: u64 = 16;

/// The number of a set of rows that kernels bind as one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkId(pub u32);

enum Home {
    /// A buffer of its own.
    Own(DeviceBuffer),
    /// A window by its number.
    Window(usize),
}

/// A chunk's place.
struct Placed {
    home: Home,
    /// What is to come there: all the time, or until it is uploaded for good.
    coming: Option<Contents>,
}

/// A buffer that chunks of one size take turns in.
struct Window {
    buffer: DeviceBuffer,
    holds: Option<ChunkId>,
}

/// All chunks of a plan.
#[derive(Default)]
pub(super) struct Residence {
    /// By the chunks' numbers.
    homes: Vec<Placed>,
    windows: Vec<Window>,
    /// Counts what is uploaded for good.
    clock: UploadClock,
    /// Chunks that are still to be uploaded for good.
    pending: usize,
}

impl Residence {
    /// Reserves memory for chunks, of which as few stream as the device's free memory allows. What is no mapped
    /// file's is uploaded at once, so that it need not be held, or made there by `maker`.
    ///
    /// # Errors
    /// [`Error::Device`] where not even the windows fit.
    pub fn place(
        contents: Vec<Contents>,
        mut maker: Option<Maker>,
        device: &dyn GpuDevice,
    ) -> Result<Self> {
        let Usage { limit, total, .. } = device.usage();
        let count = |streams: &[bool]| streams.iter().filter(|s| **s).count();
        let mut streams = streamed(&contents, limit, total);
        let mut placed = loop {
            match Self::reserve(&contents, &streams, device) {
                Ok(placed) => break placed,
                // The driver gives less than it tells: what it gave is what there is.
                Err((error, had)) => {
                    let more = streamed(&contents, total + had, total);
                    if !is_full(&error) || count(&more) <= count(&streams) {
                        return Err(error);
                    }
                    streams = more;
                }
            }
        };
        for (at, contents) in contents.into_iter().enumerate() {
            let mapped = contents.mapped();
            placed.homes[at].coming = Some(contents);
            if !mapped && !streams[at] {
                placed.settle(at, device, maker.as_mut())?;
            }
        }
        placed.wait(device)?;
        let streamed = placed.streamed_bytes();
        if streamed > 0 {
            let name = &device.target().name;
            tracing::warn!(
                "{name}: weights do not fit; {streamed} bytes of them stream from the file in each step"
            );
        }
        Ok(placed)
    }

    /// Buffers of their own, and windows for what streams; with an error the bytes that could be had.
    fn reserve(
        contents: &[Contents],
        streams: &[bool],
        device: &dyn GpuDevice,
    ) -> std::result::Result<Self, (Error, u64)> {
        let mut placed = Self::default();
        let mut by_size: HashMap<u64, usize> = HashMap::new();
        for (chunk, streams) in contents.iter().zip(streams) {
            let known = by_size.get(&chunk.room()).filter(|_| *streams);
            let home = match known {
                Some(window) => Home::Window(*window),
                None => {
                    let buffer = device.alloc(chunk.bytes, Owner::Weights, &chunk.label);
                    let buffer = buffer.map_err(|e| (e.into(), placed.resident_bytes()))?;
                    match streams {
                        true => {
                            let window = placed.windows.len();
                            by_size.insert(chunk.room(), window);
                            let holds = None;
                            placed.windows.push(Window { buffer, holds });
                            Home::Window(window)
                        }
                        false => {
                            placed.pending += 1;
                            Home::Own(buffer)
                        }
                    }
                }
            };
            let coming = None;
            placed.homes.push(Placed { home, coming });
        }
        Ok(placed)
    }

    /// The buffer that a chunk is bound as.
    pub fn buffer(&self, id: ChunkId) -> &DeviceBuffer {
        match &self.homes[id.0 as usize].home {
            Home::Own(buffer) => buffer,
            Home::Window(window) => &self.windows[*window].buffer,
        }
    }

    /// Whether [`Residence::arrive`] has to go before each launch that reads the chunk.
    pub fn waits(&self, id: ChunkId) -> bool {
        self.homes[id.0 as usize].coming.is_some()
    }

    /// The window that a chunk streams through.
    pub fn window(&self, id: ChunkId) -> Option<usize> {
        match self.homes[id.0 as usize].home {
            Home::Own(_) => None,
            Home::Window(window) => Some(window),
        }
    }

    /// Brings a chunk to its buffer where it is not there, ordered behind all that binds the buffer so far.
    pub fn arrive(&mut self, id: ChunkId, device: &dyn GpuDevice) -> Result<()> {
        let at = id.0 as usize;
        match &self.homes[at] {
            Placed { coming: None, .. } => Ok(()),
            Placed {
                home: Home::Own(_), ..
            } => self.settle(at, device, None),
            Placed {
                home: Home::Window(window),
                coming: Some(contents),
            } => {
                let window = &mut self.windows[*window];
                if window.holds != Some(id) {
                    // A write that fails half way leaves neither.
                    window.holds = None;
                    contents.write(&window.buffer, device)?;
                    window.holds = Some(id);
                }
                Ok(())
            }
        }
    }

    /// Uploads or makes for good.
    fn settle(
        &mut self,
        at: usize,
        device: &dyn GpuDevice,
        maker: Option<&mut Maker>,
    ) -> Result<()> {
        if let Placed {
            home: Home::Own(buffer),
            coming: Some(contents),
        } = &self.homes[at]
        {
            let start = Instant::now();
            let written = contents.settle(buffer, device, maker)?;
            self.clock.add(written, start);
            // The device has them: none need stay resident here too.
            contents.pieces.iter().for_each(|(_, p)| p.release_pages());
            self.homes[at].coming = None;
            self.pending -= 1;
        }
        Ok(())
    }

    /// Asks the system for a chunk's pages, so that they are there when the chunk is to arrive.
    pub fn expect(&self, id: ChunkId) {
        if let Some(contents) = &self.homes[id.0 as usize].coming {
            contents.pieces.iter().for_each(|(_, p)| p.expect_pages());
        }
    }

    /// Waits until the device has what was uploaded for good, where it may not have it yet: without that nobody knows how
    /// long it took.
    pub fn wait(&mut self, device: &dyn GpuDevice) -> Result<()> {
        if !self.clock.runs() {
            return Ok(());
        }
        device.synchronize()?;
        self.clock.stop();
        let upload = self.clock.done();
        if let (0, Some(rate)) = (self.pending, upload.gb_per_s()) {
            let (device, bytes) = (&device.target().name, upload.bytes);
            tracing::info!("{device}: uploaded {bytes} bytes of weights at {rate:.1} GB/s");
        }
        Ok(())
    }

    /// What was uploaded for good, and has arrived.
    pub fn uploaded(&self) -> Upload {
        self.clock.done()
    }

    /// Bytes of device memory.
    pub fn resident_bytes(&self) -> u64 {
        let own = self.homes.iter().map(|placed| match &placed.home {
            Home::Own(buffer) => buffer.bytes(),
            Home::Window(_) => 0,
        });
        let windows = self.windows.iter().map(|w| w.buffer.bytes());
        own.chain(windows).sum()
    }

    /// Bytes that stream in each step.
    pub fn streamed_bytes(&self) -> u64 {
        let streamed = self.homes.iter().map(|placed| match placed {
            Placed {
                home: Home::Window(_),
                coming: Some(contents),
            } => contents.bytes,
            _ => 0,
        });
        streamed.sum()
    }
}

/// Whether an error says that a device has no more memory.
fn is_full(error: &Error) -> bool {
    matches!(
        error,
        Error::Device(rusty_backend::Error::OutOfMemory { .. })
    )
}

/// Which chunks stream on a device with `limit` bytes of which `used` are taken: none where all fit, else the last of
/// those that may, as few as it takes.
fn streamed(contents: &[Contents], limit: u64, used: u64) -> Vec<bool> {
    let mut streams = vec![false; contents.len()];
    let mut resident: u64 = contents.iter().map(Contents::room).sum();
    let free = limit.saturating_sub(used);
    if resident <= free {
        return streams;
    }
    let free = free.saturating_sub(limit / LEFT_FREE);
    let mut windows = 0;
    let mut sizes = HashSet::new();
    for (at, chunk) in contents.iter().enumerate().rev() {
        if resident + windows <= free {
            break;
        }
        if chunk.stays {
            continue;
        }
        streams[at] = true;
        resident -= chunk.room();
        if sizes.insert(chunk.room()) {
            windows += chunk.room();
        }
    }
    streams
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(bytes: u64, stays: bool) -> Contents {
        Contents {
            label: String::new(),
            bytes,
            pieces: Vec::new(),
            stays,
        }
    }

    #[test]
    fn the_last_chunks_stream_as_few_as_it_takes() {
        // Four layers of two sizes between a table and a head that stay.
        let layers = [100, 60].repeat(4);
        let mut all = vec![chunk(52, true)];
        all.extend(layers.into_iter().map(|bytes| chunk(bytes, false)));
        all.push(chunk(52, true));
        let total = 744;
        let count = |limit| streamed(&all, limit, 0).iter().filter(|s| **s).count();
        assert_eq!(count(total), 0);
        // Three chunks are the fewest that free more than their two windows take.
        let three = [
            false, false, false, false, false, false, true, true, true, false,
        ];
        assert_eq!(streamed(&all, total - 1, 0), three);
        let all_but_ends = streamed(&all, 290, 0);
        assert!(!all_but_ends[0] && !all_but_ends[9] && all_but_ends[1]);
        assert_eq!(count(10), 8);
    }
}
