//! What buffers of weights are to hold, and how it gets there.

use crate::Result;
use crate::gpu::random_weights::Maker;
use rusty_backend::{DeviceBuffer, GpuDevice};
use rusty_loader::SharedBytes;

/// What a chunk's buffer is to hold.
#[derive(Debug)]
pub(in crate::gpu) struct Contents {
    pub label: String,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Stored rows, each with the byte of the buffer at which they start.
    pub pieces: Vec<(u64, SharedBytes)>,
    /// Whether it never streams: steps read but a few rows of it, or not in every step.
    pub stays: bool,
}

impl Contents {
    /// Writes all of it, from the host.
    pub fn write(&self, buffer: &DeviceBuffer, device: &dyn GpuDevice) -> Result<()> {
        for (at, bytes) in &self.pieces {
            write(device, buffer, *at, bytes)?;
        }
        Ok(())
    }

    /// As [`write`](Self::write), but what the device can make it makes; the bytes that came from the host.
    pub fn settle(
        &self,
        buffer: &DeviceBuffer,
        device: &dyn GpuDevice,
        mut maker: Option<&mut Maker>,
    ) -> Result<u64> {
        let mut written = 0;
        for (at, bytes) in &self.pieces {
            let made = match &mut maker {
                Some(maker) => maker.make(bytes, (buffer, *at), device)?,
                None => false,
            };
            if !made {
                write(device, buffer, *at, bytes)?;
                written += bytes.len() as u64;
            }
        }
        Ok(written)
    }

    /// Whether the device can make some of it.
    pub fn is_promised(&self) -> bool {
        self.pieces.iter().any(|(_, b)| b.pattern().is_some())
    }

    /// Whether all of it lies in mapped files.
    pub fn mapped(&self) -> bool {
        self.pieces.iter().all(|(_, bytes)| bytes.is_mapped())
    }

    /// Bytes of device memory.
    pub fn room(&self) -> u64 {
        self.bytes.next_multiple_of(4)
    }
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
