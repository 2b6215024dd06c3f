//! Device to host: launches and the copies of what they leave in one submission, through buffers that grow.

use super::faults::guarded;
use super::queue::Queue;
use super::recording::WgpuRecording;
use super::transfer::{Mapped, wait};
use crate::memory::{Accounts, Charge, Owner};
use crate::{Error, Fetch, Result, Target};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::{BufferUsages, MapMode};

/// Bytes of the smallest buffer.
const LEAST: u64 = 4096;

/// Buffers that results come back through: as many as there were threads that waited at the same time.
#[derive(Debug, Default)]
pub(super) struct ReadBack {
    idle: Mutex<Vec<Mappable>>,
}

/// A buffer that the host can read.
#[derive(Debug)]
pub(super) struct Mappable {
    buffer: wgpu::Buffer,
    _charge: Charge,
}

impl ReadBack {
    /// A buffer of at least `bytes` that nobody else uses. It is given back once it was read; one that failed is not, because
    /// it may be mapped, or on its way to be, and could not be copied to again.
    pub(super) fn take(
        &self,
        device: &wgpu::Device,
        target: &Target,
        accounts: &Arc<Accounts>,
        bytes: u64,
    ) -> Result<Mappable> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        match idle.filter(|idle| idle.buffer.size() >= bytes) {
            Some(idle) => Ok(idle),
            None => Mappable::new(device, target, accounts, bytes),
        }
    }

    pub(super) fn give_back(&self, buffer: Mappable) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(buffer);
    }
}

impl Mappable {
    fn new(
        device: &wgpu::Device,
        target: &Target,
        accounts: &Arc<Accounts>,
        bytes: u64,
    ) -> Result<Self> {
        let size = bytes.next_power_of_two().max(LEAST);
        let charge = accounts.charge(Owner::Staging, size)?;
        let made = guarded(device, || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("read back"),
                size,
                usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        match made {
            Ok(buffer) => Ok(Self {
                buffer,
                _charge: charge,
            }),
            Err(wgpu::Error::OutOfMemory { .. }) => Err(accounts.refuse(Owner::Staging, size)),
            Err(error) => Err(Error::Driver {
                device: target.name.clone(),
                call: "alloc a buffer to read through".into(),
                reason: error.to_string(),
            }),
        }
    }

    /// Submits a recording and the copies of `ranges`, which were checked.
    pub(super) fn fetch(
        self,
        (device, queue): (&wgpu::Device, &Queue),
        behind: Option<&WgpuRecording>,
        ranges: &[Fetch<'_>],
    ) -> Result<Copying, String> {
        let mut encoder = device.create_command_encoder(&Default::default());
        if let Some(recording) = behind {
            recording.encode_into(&mut encoder);
        }
        let mut at = 0;
        for range in ranges.iter().filter(|range| range.len > 0) {
            let from: &wgpu::Buffer = range.buffer.raw().map_err(|e| e.to_string())?;
            let bytes = copied_bytes(range.len);
            encoder.copy_buffer_to_buffer(from, range.offset, &self.buffer, at, bytes);
            at += bytes;
        }
        let submission = queue.submit([encoder.finish()]);
        let (tell, word) = channel();
        // Without a byte there is nothing to map.
        match at {
            0 => drop(tell.send(Ok(()))),
            _ => self.buffer.map_async(MapMode::Read, ..at, move |mapped| {
                // Nobody listens where what was fetched is wanted no more.
                let _ = tell.send(mapped);
            }),
        }
        Ok(Copying {
            through: self,
            bytes: at,
            submission,
            word,
        })
    }
}

/// Ranges on their way to a buffer that the host can read.
pub(super) struct Copying {
    through: Mappable,
    bytes: u64,
    submission: wgpu::SubmissionIndex,
    word: Receiver<Mapped>,
}

impl Copying {
    /// Waits for the ranges and hands their bytes out; gives back what they came through.
    pub(super) fn hand_out(
        self,
        device: &wgpu::Device,
        places: &mut [&mut [u8]],
    ) -> Result<Mappable, String> {
        wait(device, self.submission, &self.word)?;
        if self.bytes > 0 {
            let buffer = &self.through.buffer;
            {
                let view = buffer.get_mapped_range(..self.bytes);
                let view = view.map_err(|e| e.to_string())?;
                let mut at = 0;
                for place in places {
                    place.copy_from_slice(&view[at..at + place.len()]);
                    at += copied_bytes(place.len()) as usize;
                }
            }
            buffer.unmap();
        }
        Ok(self.through)
    }
}

/// Bytes that are copied for a range of so many: whole words, which every buffer has.
pub(super) fn copied_bytes(len: usize) -> u64 {
    (len as u64).next_multiple_of(4)
}
