//! Host to device through a bounded ring of pinned memory.

use super::memory::PinnedMemory;
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result, sys};
use std::sync::Arc;

/// Bytes of one piece of the ring.
const PIECE: usize = 16 << 20;
/// Pieces of the ring: one is filled while the others travel.
const PIECES: usize = 4;
/// Bytes of the ring.
pub(super) const RING_BYTES: u64 = (PIECE * PIECES) as u64;
/// Writes up to this are copied by the driver; larger ones go through the ring.
pub(super) const SMALL: usize = 256 << 10;

/// The upload ring of a stream.
#[derive(Debug)]
pub(super) struct Ring {
    stream: Arc<CudaStream>,
    pieces: Vec<(PinnedMemory, CudaEvent)>,
    next: usize,
}

impl Ring {
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self, DriverError> {
        let context = stream.context();
        let piece = || Ok((PinnedMemory::new(context, PIECE)?, context.new_event(None)?));
        Ok(Self {
            stream: Arc::clone(stream),
            pieces: (0..PIECES)
                .map(|_| piece())
                .collect::<Result<_, DriverError>>()?,
            next: 0,
        })
    }

    /// Enqueues the copy of `data` to `address`, of which the caller owns as many bytes; returns once `data`
    /// may change.
    pub(super) fn write(
        &mut self,
        address: sys::CUdeviceptr,
        data: &[u8],
    ) -> Result<(), DriverError> {
        self.stream.context().bind_to_thread()?;
        let mut address = address;
        for chunk in data.chunks(PIECE) {
            let (memory, travelled) = &mut self.pieces[self.next];
            self.next = (self.next + 1) % PIECES;
            travelled.synchronize()?;
            let piece = &mut memory.bytes()[..chunk.len()];
            piece.copy_from_slice(chunk);
            // SAFETY: the target range was checked by the caller; the piece is not touched again until the
            // event after the copy has been waited for.
            unsafe { result::memcpy_htod_async(address, piece, self.stream.cu_stream()) }?;
            travelled.record(&self.stream)?;
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
