//! Host to device through a bounded ring of pinned memory.

use super::memory::PinnedMemory;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};
use std::sync::Arc;

/// Bytes of one piece of the ring.
const PIECE: usize = 16 << 20;
/// Pieces of the ring: one is filled while the others travel.
const PIECES: usize = 4;
/// Bytes of the ring.
pub(super) const RING_BYTES: u64 = (PIECE * PIECES) as u64;
/// Writes up to this are copied by the driver; larger ones go through the ring. More than 64 KiB from memory that is not pinned the driver
/// may hold back until the stream is done (CUDA C++ programming guide, asynchronous concurrent execution), and with it the next step.
pub(super) const SMALL: usize = 64 << 10;

/// The upload ring of a device; each piece belongs to the stream that it travels on until it has arrived.
#[derive(Debug)]
pub(super) struct Ring {
    pieces: Vec<(PinnedMemory, CudaEvent)>,
    next: usize,
}

impl Ring {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let piece = || Ok((PinnedMemory::new(context, PIECE)?, context.new_event(None)?));
        Ok(Self {
            pieces: (0..PIECES)
                .map(|_| piece())
                .collect::<Result<_, DriverError>>()?,
            next: 0,
        })
    }

    /// Enqueues the copy of `data` to `address` on `stream`; the caller owns as many bytes there. Returns once `data` may
    /// change.
    pub(super) fn write(
        &mut self,
        stream: &CudaStream,
        address: sys::CUdeviceptr,
        data: &[u8],
    ) -> Result<(), DriverError> {
        stream.context().bind_to_thread()?;
        let mut address = address;
        for chunk in data.chunks(PIECE) {
            let (memory, travelled) = &mut self.pieces[self.next];
            self.next = (self.next + 1) % PIECES;
            travelled.synchronize()?;
            let piece = &mut memory.bytes()[..chunk.len()];
            piece.copy_from_slice(chunk);
            // SAFETY: the target range was checked by the caller; the piece is not touched again until the
            // event after the copy has been waited for.
            unsafe { result::memcpy_htod_async(address, piece, stream.cu_stream()) }?;
            travelled.record(stream)?;
            address += chunk.len() as u64;
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for (_, travelled) in &self.pieces {
            if let Err(error) = travelled.synchronize() {
                tracing::debug!("an upload has not ended: {error}");
            }
        }
    }
}
