//! Where the weights of kernels lie: on the device for good, or in windows through which they stream in each step.
//!
//! Nothing is uploaded before it is needed: a mapped file's bytes follow the first step, chunk by chunk, so that its
//! first layers run while later ones are still on their way. Where the device has not room for all, the last chunks
//! of the plan stay in the mapping. Two windows of each size take them up in turn: while kernels read one, what
//! they read a layer later is on its way to the other.

use crate::Result;
use rusty_backend::{DeviceBuffer, GpuDevice, Owner};
use rusty_loader::SharedBytes;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Where weights stream anyway, this part of the memory stays free for adapters that come later.
const LEFT_FREE: u64 = 16;
/// Windows of one size.
const WINDOWS: usize = 2;

/// The number of a set of rows that kernels bind as one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkId(pub u32);

/// What a chunk's buffer is to hold.
#[derive(Debug)]
pub(super) struct Contents {
    pub label: String,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Stored rows, each with the byte of the buffer at which they start.
    pub pieces: Vec<(u64, SharedBytes)>,
    /// Whether it never streams: steps read but a few rows of it, or not in every step.
    pub stays: bool,
}

impl Contents {
    fn write(&self, buffer: &DeviceBuffer, device: &dyn GpuDevice) -> Result<()> {
        for (at, bytes) in &self.pieces {
            write(device, buffer, *at, bytes)?;
        }
        Ok(())
    }

    fn mapped(&self) -> bool {
        self.pieces.iter().all(|(_, bytes)| bytes.is_mapped())
    }

    /// Bytes of device memory.
    fn room(&self) -> u64 {
        self.bytes.next_multiple_of(4)
    }
}

enum Home {
    /// A buffer of its own; the contents are there until they are uploaded.
    Own(DeviceBuffer, Option<Contents>),
    /// A window by its number.
    Window(usize, Contents),
}

/// A buffer that chunks of one size take turns in.
struct Window {
    buffer: DeviceBuffer,
    holds: Option<ChunkId>,
}

/// All chunks of a plan.
#[derive(Default)]
pub(super) struct Residence {
    homes: Vec<Home>,
    windows: Vec<Window>,
    /// Bytes uploaded for good, and the time that took the caller.
    uploaded: (u64, Duration),
    /// Chunks that are still to be uploaded for good.
    pending: usize,
}

impl Residence {
    /// Reserves memory for chunks, of which as few stream as the device's free memory allows. What is no mapped
    /// file's is uploaded at once, so that it need not be held.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) where not even the windows fit.
    pub fn place(contents: Vec<Contents>, device: &dyn GpuDevice) -> Result<Self> {
        let usage = device.usage();
        let streams = streamed(&contents, usage.limit, usage.total);
        let mut placed = Self::default();
        let mut by_size: HashMap<u64, (Vec<usize>, usize)> = HashMap::new();
        for (contents, streams) in contents.into_iter().zip(streams) {
            let home = if streams {
                let (windows, used) = by_size.entry(contents.room()).or_default();
                if windows.len() < WINDOWS {
                    windows.push(placed.windows.len());
                    placed.windows.push(Window {
                        buffer: device.alloc(contents.bytes, Owner::Weights, "streamed weights")?,
                        holds: None,
                    });
                }
                *used += 1;
                Home::Window(windows[(*used - 1) % WINDOWS], contents)
            } else {
                let buffer = device.alloc(contents.bytes, Owner::Weights, &contents.label)?;
                placed.pending += 1;
                Home::Own(buffer, Some(contents))
            };
            let at_once = matches!(&home, Home::Own(_, Some(c)) if !c.mapped());
            placed.homes.push(home);
            if at_once {
                placed.arrive(ChunkId(placed.homes.len() as u32 - 1), device)?;
            }
        }
        let streamed = placed.streamed_bytes();
        if streamed > 0 {
            tracing::warn!(
                "{}: weights do not fit; {streamed} bytes of them stream from the file in each step",
                device.target().name
            );
        }
        Ok(placed)
    }

    /// The buffer that a chunk is bound as.
    pub fn buffer(&self, id: ChunkId) -> &DeviceBuffer {
        match &self.homes[id.0 as usize] {
            Home::Own(buffer, _) => buffer,
            Home::Window(window, _) => &self.windows[*window].buffer,
        }
    }

    /// Whether [`Residence::arrive`] has to go before each launch that reads the chunk.
    pub fn waits(&self, id: ChunkId) -> bool {
        !matches!(&self.homes[id.0 as usize], Home::Own(_, None))
    }

    /// Whether the chunk is still to be uploaded for good.
    pub fn pending(&self, id: ChunkId) -> bool {
        matches!(&self.homes[id.0 as usize], Home::Own(_, Some(_)))
    }

    /// The window that a chunk streams through.
    pub fn window(&self, id: ChunkId) -> Option<usize> {
        match &self.homes[id.0 as usize] {
            Home::Own(..) => None,
            Home::Window(window, _) => Some(*window),
        }
    }

    /// Brings a chunk to its buffer where it is not there, ordered behind all that was submitted before.
    pub fn arrive(&mut self, id: ChunkId, device: &dyn GpuDevice) -> Result<()> {
        match &mut self.homes[id.0 as usize] {
            Home::Own(buffer, pending) => {
                let Some(contents) = pending else {
                    return Ok(());
                };
                let start = Instant::now();
                contents.write(buffer, device)?;
                // The device has them: none need stay resident here too.
                contents.pieces.iter().for_each(|(_, p)| p.release_pages());
                self.uploaded.0 += buffer.bytes();
                self.uploaded.1 += start.elapsed();
                *pending = None;
                self.pending -= 1;
                if self.pending == 0 {
                    self.tell(device);
                }
            }
            Home::Window(window, contents) => {
                let window = &mut self.windows[*window];
                if window.holds != Some(id) {
                    // A write that fails half way leaves neither.
                    window.holds = None;
                    contents.write(&window.buffer, device)?;
                    window.holds = Some(id);
                }
            }
        }
        Ok(())
    }

    /// Asks the system for a chunk's pages, so that they are there when the chunk is to arrive.
    pub fn expect(&self, id: ChunkId) {
        if let Home::Window(_, contents) = &self.homes[id.0 as usize] {
            contents.pieces.iter().for_each(|(_, p)| p.expect_pages());
        }
    }

    fn tell(&self, device: &dyn GpuDevice) {
        let (bytes, time) = self.uploaded;
        let rate = bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9;
        let device = &device.target().name;
        tracing::info!("{device}: uploaded {bytes} bytes of weights at {rate:.1} GB/s");
    }

    /// Bytes of device memory.
    pub fn resident_bytes(&self) -> u64 {
        let own = |home: &Home| match home {
            Home::Own(buffer, _) => buffer.bytes(),
            Home::Window(..) => 0,
        };
        let windows = self.windows.iter().map(|w| w.buffer.bytes());
        self.homes.iter().map(own).sum::<u64>() + windows.sum::<u64>()
    }

    /// Bytes that stream in each step.
    pub fn streamed_bytes(&self) -> u64 {
        let streamed = |home: &Home| match home {
            Home::Own(..) => 0,
            Home::Window(_, contents) => contents.bytes,
        };
        self.homes.iter().map(streamed).sum()
    }
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
    let mut by_size: HashMap<u64, usize> = HashMap::new();
    for (at, chunk) in contents.iter().enumerate().rev() {
        if resident + windows <= free {
            break;
        }
        if chunk.stays {
            continue;
        }
        streams[at] = true;
        resident -= chunk.room();
        let of_size = by_size.entry(chunk.room()).or_default();
        *of_size += 1;
        if *of_size <= WINDOWS {
            windows += chunk.room();
        }
    }
    streams
}

/// Writes bytes of any length at a multiple of four.
fn write(device: &dyn GpuDevice, buffer: &DeviceBuffer, at: u64, bytes: &[u8]) -> Result<()> {
    let whole = bytes.len() / 4 * 4;
    if whole > 0 {
        device.write(buffer, at, &bytes[..whole])?;
    }
    if whole < bytes.len() {
        let mut rest = [0u8; 4];
        rest[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
        device.write(buffer, at + whole as u64, &rest)?;
    }
    Ok(())
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
        // Five chunks are the fewest that free more than their four windows take.
        let five = [
            false, false, false, false, true, true, true, true, true, false,
        ];
        assert_eq!(streamed(&all, total - 1, 0), five);
        let all_but_ends = streamed(&all, 460, 0);
        assert!(!all_but_ends[0] && !all_but_ends[9] && all_but_ends[8]);
        assert_eq!(count(10), 8);
    }
}
