//! A wgpu device behind the seam.

use super::faults::{Faults, guarded};
use super::pipelines::Pipelines;
use super::queue::Queue;
use super::read_back::{Copying, ReadBack, copied_bytes};
use super::recording::WgpuRecording;
use super::transfer::{Ring, SMALL};
use crate::memory::{Accounts, Owner, Usage};
use crate::{
    DeviceBuffer, Error, Fetch, GpuDevice, KernelText, Launch, Pending, Pipeline, Recording,
    Result, Target,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wgpu::BufferUsages;

/// An opened adapter.
#[derive(Debug)]
pub struct WgpuDevice {
    target: Target,
    device: wgpu::Device,
    queue: Queue,
    accounts: Arc<Accounts>,
    faults: Arc<Faults>,
    pipelines: Pipelines,
    ring: Mutex<Ring>,
    read_back: ReadBack,
}

impl WgpuDevice {
    pub(super) fn new(
        target: Target,
        device: wgpu::Device,
        queue: wgpu::Queue,
        cache: Option<String>,
    ) -> Self {
        Self {
            accounts: Accounts::new(&target.name, target.memory_bytes),
            faults: Faults::watch(&device),
            pipelines: Pipelines::new(&device, cache),
            ring: Mutex::default(),
            read_back: ReadBack::default(),
            target,
            device,
            queue: Queue::new(queue),
        }
    }

    fn check(&self) -> Result<()> {
        self.faults.check(&self.target.name)
    }

    /// The error of `call`, or that of the lost device where it explains it.
    fn failed(&self, call: &str, reason: String) -> Error {
        self.check().err().unwrap_or_else(|| Error::Driver {
            device: self.target.name.clone(),
            call: call.into(),
            reason,
        })
    }

    fn handles(&self) -> (&wgpu::Device, &Queue) {
        (&self.device, &self.queue)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GpuDevice for WgpuDevice {
    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer> {
        self.check()?;
        let size = bytes.max(4).next_multiple_of(4);
        if size > self.target.max_buffer_bytes {
            return Err(Error::TooLarge {
                device: self.target.name.clone(),
                what: format!("buffer {label}"),
                asked: bytes,
                limit: self.target.max_buffer_bytes,
            });
        }
        let charge = self.accounts.charge(owner, size)?;
        let made = guarded(&self.device, || {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size,
                usage: BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            })
        });
        match made {
            Ok(buffer) => Ok(DeviceBuffer::new(Box::new(buffer), bytes, label, charge)),
            Err(wgpu::Error::OutOfMemory { .. }) => {
                drop(charge);
                Err(self.accounts.refuse(owner, size))
            }
            Err(error) => Err(self.failed(&format!("alloc {label}"), error.to_string())),
        }
    }

    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()> {
        self.check()?;
        buffer.check_transfer(offset, data.len() as u64)?;
        let raw: &wgpu::Buffer = buffer.raw()?;
        let (whole, tail) = data.split_at(data.len() & !3);
        if whole.len() > SMALL {
            lock(&self.ring)
                .write(self.handles(), &self.accounts, raw, offset, whole)
                .map_err(|e| self.failed(&format!("write {}", buffer.label()), e))?;
        } else if !whole.is_empty() {
            self.queue.write(raw, offset, whole);
        }
        if !tail.is_empty() {
            let mut word = [0; 4];
            word[..tail.len()].copy_from_slice(tail);
            self.queue.write(raw, offset + whole.len() as u64, &word);
        }
        Ok(())
    }

    fn pipeline(&self, text: &KernelText) -> Result<Pipeline> {
        self.check()?;
        self.pipelines
            .get(&self.device, (&self.target.name, &self.accounts), text)
    }

    fn record(&self, launches: &[Launch]) -> Result<Recording> {
        self.check()?;
        let recording = WgpuRecording::new(&self.device, &self.target, &self.accounts, launches)?;
        Ok(Recording::new(Box::new(recording), launches))
    }

    fn submit(&self, recording: &Recording) -> Result<()> {
        self.check()?;
        let raw: &WgpuRecording = recording.raw()?;
        self.queue.submit([raw.encode(&self.device)]);
        Ok(())
    }

    fn fetch(&self, behind: Option<&Recording>, ranges: &[Fetch<'_>]) -> Result<Pending> {
        self.check()?;
        for range in ranges.iter() {
            range.check()?;
            range.buffer.raw::<wgpu::Buffer>()?;
        }
        let bytes: u64 = ranges.iter().map(|range| copied_bytes(range.len)).sum();
        let recording = behind.map(Recording::raw::<WgpuRecording>).transpose()?;
        let (device, accounts) = (&self.device, &self.accounts);
        let through = self.read_back.take(device, &self.target, accounts, bytes)?;
        let copying = through
            .fetch(self.handles(), recording, ranges)
            .map_err(|e| self.failed(&Fetch::call(ranges), e))?;
        Ok(Pending::new(Box::new(copying), ranges))
    }

    fn receive(&self, pending: Pending, out: &mut [&mut [u8]]) -> Result<()> {
        let copying: Copying = pending.into_raw(out)?;
        let through = copying
            .hand_out(&self.device, out)
            .map_err(|e| self.failed("read what was fetched", e))?;
        self.read_back.give_back(through);
        self.check()
    }

    fn copy(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &DeviceBuffer,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        self.check()?;
        from.check_transfer(from_offset, len)?;
        to.check_transfer(to_offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let len = len.next_multiple_of(4);
        let (source, target): (&wgpu::Buffer, &wgpu::Buffer) = (from.raw()?, to.raw()?);
        let encoded = guarded(&self.device, || {
            let mut encoder = self.device.create_command_encoder(&Default::default());
            if from.same(to) {
                // A copy inside one buffer is not allowed: the way leads through another.
                let between = self.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("copy within a buffer"),
                    size: len,
                    usage: BufferUsages::COPY_DST | BufferUsages::COPY_SRC,
                    mapped_at_creation: false,
                });
                encoder.copy_buffer_to_buffer(source, from_offset, &between, 0, len);
                encoder.copy_buffer_to_buffer(&between, 0, target, to_offset, len);
            } else {
                encoder.copy_buffer_to_buffer(source, from_offset, target, to_offset, len);
            }
            encoder.finish()
        });
        let call = || format!("copy {} to {}", from.label(), to.label());
        let commands = encoded.map_err(|e| self.failed(&call(), e.to_string()))?;
        self.queue.submit([commands]);
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        // Small writes wait in wgpu until something is submitted.
        self.queue.submit([]);
        self.device
            .poll(wgpu::PollType::wait_indefinitely())
            .map_err(|e| self.failed("synchronize", e.to_string()))?;
        self.check()
    }

    fn submissions(&self) -> u64 {
        self.queue.submissions()
    }

    fn usage(&self) -> Usage {
        self.accounts.usage()
    }

    fn keep_pipelines(&self) {
        self.pipelines.keep();
    }
}
