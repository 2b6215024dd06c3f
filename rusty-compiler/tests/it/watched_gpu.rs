//! A GPU that tells what it was asked for, and may say that it can do less.

use crate::reference::gpu_device;
use rusty_backend::memory::Usage;
use rusty_backend::{
    DeviceBuffer, GpuDevice, KernelText, Launch, Owner, Pipeline, Recording, Result, Target,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The tests' GPU behind what watches it.
#[derive(Debug)]
pub(crate) struct WatchedGpu {
    gpu: Arc<dyn GpuDevice>,
    target: Target,
    /// Labels and bytes of its buffers of weights.
    weights: Mutex<Vec<(String, u64)>>,
    compiled: AtomicUsize,
}

impl WatchedGpu {
    /// With its own facts, or with those that `change` makes of them.
    pub(crate) fn new(change: impl FnOnce(&mut Target)) -> Arc<Self> {
        let gpu = gpu_device().gpu().expect("a GPU").clone();
        let mut target = gpu.target().clone();
        change(&mut target);
        Arc::new(Self {
            gpu,
            target,
            weights: Mutex::default(),
            compiled: AtomicUsize::new(0),
        })
    }

    /// Labels and bytes of the buffers of weights that were made.
    pub(crate) fn weights(&self) -> Vec<(String, u64)> {
        let weights = self.weights.lock();
        weights.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Kernels that were compiled.
    pub(crate) fn compiled(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Bytes booked for adapters.
    pub(crate) fn booked(&self) -> u64 {
        let usage = self.usage();
        let mut of = usage.by_owner.iter();
        of.find(|(owner, _)| *owner == Owner::Adapters)
            .map_or(0, |(_, bytes)| *bytes)
    }
}

impl GpuDevice for WatchedGpu {
    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer> {
        if owner == Owner::Weights {
            let mut weights = self.weights.lock().expect("no other user");
            weights.push((label.into(), bytes));
        }
        self.gpu.alloc(bytes, owner, label)
    }

    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()> {
        self.gpu.write(buffer, offset, data)
    }

    fn pipeline(&self, text: &KernelText) -> Result<Pipeline> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        self.gpu.pipeline(text)
    }

    fn record(&self, launches: &[Launch]) -> Result<Recording> {
        self.gpu.record(launches)
    }

    fn submit(&self, recording: &Recording) -> Result<()> {
        self.gpu.submit(recording)
    }

    fn run(&self, launches: &[Launch]) -> Result<()> {
        self.gpu.run(launches)
    }

    fn read_into(&self, buffer: &DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()> {
        self.gpu.read_into(buffer, offset, out)
    }

    fn copy(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &DeviceBuffer,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        self.gpu.copy(from, from_offset, to, to_offset, len)
    }

    fn synchronize(&self) -> Result<()> {
        self.gpu.synchronize()
    }

    fn usage(&self) -> Usage {
        self.gpu.usage()
    }
}
