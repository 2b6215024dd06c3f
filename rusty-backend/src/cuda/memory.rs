//! Device and pinned host memory that free themselves.

use super::order;
use cudarc::driver::{CudaContext, CudaEvent, DriverError, result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// Whose turn it is with device memory that is uploaded beside kernels.
pub(super) type Turns = order::Turns<CudaEvent>;

/// Bytes that are left to the driver where no limit is given. Beside the buffers that are booked it takes memory
/// that is not: for kernels' code, which it loads when they first run, for what they keep beyond their registers, in
/// all units that can run at once, for graphs, and to round buffers up to its own pages. No call tells how much, so
/// this is a guess with room.
const RESERVE: u64 = 512 << 20;
/// At most this part of what is free: smaller devices have fewer units to keep room for.
const RESERVED_PART: u64 = 32;

/// Bytes that may be booked where so many are free; a limit that was asked for leaves what it leaves.
pub(super) fn usable(free: u64, limit: Option<u64>) -> u64 {
    match limit {
        Some(limit) => limit.min(free),
        None => free - RESERVE.min(free / RESERVED_PART),
    }
}

/// A range of device memory.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    context: Arc<CudaContext>,
    address: sys::CUdeviceptr,
    /// None where all goes through the kernels' stream.
    turns: Option<Arc<Turns>>,
}

impl DeviceMemory {
    /// `bytes` of device memory, not yet zeroed; `beside` where it is uploaded beside kernels.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        bytes: usize,
        beside: bool,
    ) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        let turns = match beside {
            true => Some(Arc::new(Turns::new(context.new_event(None)?))),
            false => None,
        };
        // SAFETY: the context is current; the address is freed once, in `drop`.
        let address = unsafe { result::malloc_sync(bytes) }?;
        Ok(Self {
            context: Arc::clone(context),
            address,
            turns,
        })
    }

    /// Whose turn it is, where both streams touch it.
    pub(super) fn turns(&self) -> Option<&Arc<Turns>> {
        self.turns.as_ref()
    }

    /// Its address on the device.
    pub(super) fn address(&self) -> sys::CUdeviceptr {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the address came from `malloc_sync` in this context and is not used again. cuMemFree waits for
        // work that is under way, on whichever stream.
        let freed = self
            .context
            .bind_to_thread()
            .and_then(|()| unsafe { result::free_sync(self.address) });
        if let Err(error) = freed {
            tracing::debug!("device memory is not freed: {error}");
        }
    }
}

/// Host memory that the device copies from and to directly.
#[derive(Debug)]
pub(super) struct PinnedMemory {
    context: Arc<CudaContext>,
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, and any thread may use host memory of CUDA.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        // SAFETY: the context is current; the memory is freed once, in `drop`.
        let start = unsafe { result::malloc_host(bytes, 0) }?;
        // SAFETY: the driver returned `bytes` of writable memory.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self {
            context: Arc::clone(context),
            start,
            bytes,
        })
    }

    /// Its bytes; the caller sees to it that no copy from them is under way.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `start` is `bytes` long, was initialised in `new`, and is borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: `start` came from `malloc_host` in this context and is not used again; its owners wait for
        // copies from and to it before they drop it.
        let freed = self
            .context
            .bind_to_thread()
            .and_then(|()| unsafe { result::free_host(self.start) });
        if let Err(error) = freed {
            tracing::debug!("pinned memory is not freed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RESERVE, usable};

    #[test]
    fn the_driver_keeps_some_memory_unless_a_limit_says_otherwise() {
        assert_eq!(usable(64 << 30, None), (64 << 30) - RESERVE);
        assert_eq!(usable(4 << 30, None), (4 << 30) - (128 << 20));
        assert_eq!(usable(4 << 30, Some(3 << 30)), 3 << 30);
        assert_eq!(usable(4 << 30, Some(5 << 30)), 4 << 30);
        assert_eq!(usable(0, None), 0);
    }
}
