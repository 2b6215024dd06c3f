//! Device to host: copies behind the kernels into pinned memory, and an event that says when they are there.

use super::memory::PinnedMemory;
use crate::memory::Charge;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};
use std::sync::Arc;

/// Pinned memory that results come back through.
#[derive(Debug)]
pub(super) struct ReadBack {
    memory: PinnedMemory,
    size: usize,
    arrived: CudaEvent,
    _charge: Charge,
}

impl ReadBack {
    /// Of `size` bytes, which are booked.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        size: usize,
        charge: Charge,
    ) -> Result<Self, DriverError> {
        Ok(Self {
            memory: PinnedMemory::new(context, size)?,
            size,
            arrived: context.new_event(None)?,
            _charge: charge,
        })
    }

    /// Its bytes.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Enqueues the copies of `ranges`, addresses and lengths that the caller has checked and that fit. None other may be
    /// under way through it.
    pub(super) fn enqueue(
        &mut self,
        stream: &CudaStream,
        ranges: &[(sys::CUdeviceptr, usize)],
    ) -> Result<(), DriverError> {
        let mut rest = self.memory.bytes();
        for (address, len) in ranges.iter().filter(|(_, len)| *len > 0) {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(*len);
            // SAFETY: the source was checked by the caller; the memory is pinned, stays where it is, and is not touched
            // before the event behind the copies has been waited for.
            unsafe { result::memcpy_dtoh_async(part, *address, stream.cu_stream()) }?;
            rest = behind;
        }
        self.arrived.record(stream)
    }

    /// Waits for the copies and hands the bytes out, in the order of the ranges.
    pub(super) fn hand_out(&mut self, places: &mut [&mut [u8]]) -> Result<(), DriverError> {
        self.arrived.synchronize()?;
        let mut rest: &[u8] = self.memory.bytes();
        for place in places {
            let (part, behind) = rest.split_at(place.len());
            place.copy_from_slice(part);
            rest = behind;
        }
        Ok(())
    }
}

impl Drop for ReadBack {
    fn drop(&mut self) {
        // What may still be on its way must not find its memory gone.
        if let Err(error) = self.arrived.synchronize() {
            tracing::debug!("a read has not ended: {error}");
        }
    }
}
