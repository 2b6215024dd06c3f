//! A GPU that tells what it was asked for, and may say that it can do less, that it has no memory left, or that it is lost.

use crate::reference::gpu_device;
use rusty_backend::memory::Usage;
use rusty_backend::{
    DeviceBuffer, Error, Fetch, GpuDevice, KernelText, Launch, Owner, Pending, Pipeline, Recording,
    Result, Target,
};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A buffer that was made.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) owner: Owner,
    pub(crate) label: String,
    pub(crate) bytes: u64,
}

/// Which kernels are meant.
pub(crate) type Picks = fn(&KernelText) -> bool;

/// The tests' GPU behind what watches it.
#[derive(Debug)]
pub(crate) struct WatchedGpu {
    gpu: Arc<dyn GpuDevice>,
    target: Target,
    made: Mutex<Vec<Made>>,
    compiled: AtomicUsize,
    /// Bytes that were written to buffers of weights.
    uploaded: AtomicU64,
    /// Launches that were not recorded.
    ran: AtomicUsize,
    /// Kernels that are to do nothing.
    broken: Mutex<Option<Picks>>,
    /// Bytes of the largest buffer that it still has room for.
    room: AtomicU64,
    /// Whether recordings find no memory.
    refuses_recordings: AtomicBool,
    /// Entry point of the kernel that it is lost by.
    lost_by: Mutex<Option<&'static str>>,
    /// Recordings until it is lost.
    recordings: AtomicUsize,
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
            made: Mutex::default(),
            compiled: AtomicUsize::new(0),
            uploaded: AtomicU64::new(0),
            ran: AtomicUsize::new(0),
            broken: Mutex::default(),
            room: AtomicU64::new(u64::MAX),
            refuses_recordings: AtomicBool::new(false),
            lost_by: Mutex::default(),
            recordings: AtomicUsize::new(usize::MAX),
        })
    }

    /// Has no memory for buffers of more bytes from here on.
    pub(crate) fn leave_room(&self, bytes: u64) {
        self.room.store(bytes, Ordering::Relaxed);
    }

    /// Whether it has no memory for recordings from here on.
    pub(crate) fn refuse_recordings(&self, refuse: bool) {
        self.refuses_recordings.store(refuse, Ordering::Relaxed);
    }

    /// Is lost from here on whenever a kernel with this entry point runs.
    pub(crate) fn lose_by(&self, entry: &'static str) {
        *self.lost_by.lock().expect("no other user") = Some(entry);
    }

    /// Is lost behind so many recordings.
    pub(crate) fn lose_behind(&self, recordings: usize) {
        self.recordings.store(recordings, Ordering::Relaxed);
    }

    fn lost(&self) -> Error {
        Error::Lost {
            device: self.target.name.clone(),
            reason: "a test".into(),
        }
    }

    /// The error where it has room for `room` bytes only.
    fn full(&self, who: &str, asked: u64, room: u64) -> Error {
        let used = self.usage().total;
        Error::OutOfMemory {
            device: self.target.name.clone(),
            owner: who.into(),
            asked,
            used,
            limit: used + room,
        }
    }

    /// Kernels that are compiled from here on do nothing where they are of these.
    pub(crate) fn break_kernels(&self, these: Picks) {
        *self.broken.lock().expect("no other user") = Some(these);
    }

    /// Launches that were run without being recorded.
    pub(crate) fn ran(&self) -> usize {
        self.ran.load(Ordering::Relaxed)
    }

    /// All buffers that were made, in order.
    pub(crate) fn made(&self) -> Vec<Made> {
        let made = self.made.lock();
        made.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Labels and bytes of the buffers of weights that were made.
    pub(crate) fn weights(&self) -> Vec<(String, u64)> {
        let made = self.made().into_iter();
        let weights = made.filter(|made| made.owner == Owner::Weights);
        weights.map(|made| (made.label, made.bytes)).collect()
    }

    /// Kernels that were compiled.
    pub(crate) fn compiled(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Bytes of weights that came from the host.
    pub(crate) fn uploaded(&self) -> u64 {
        self.uploaded.load(Ordering::Relaxed)
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
        let room = self.room.load(Ordering::Relaxed);
        if bytes > room {
            return Err(self.full(owner.word(), bytes, room));
        }
        self.made.lock().expect("no other user").push(Made {
            owner,
            label: label.into(),
            bytes,
        });
        self.gpu.alloc(bytes, owner, label)
    }

    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()> {
        if buffer.owner() == Owner::Weights {
            let bytes = data.len() as u64;
            self.uploaded.fetch_add(bytes, Ordering::Relaxed);
        }
        self.gpu.write(buffer, offset, data)
    }

    fn pipeline(&self, text: &KernelText) -> Result<Pipeline> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let broken = *self.broken.lock().expect("no other user");
        match broken.is_some_and(|these| these(text)) {
            true => self.gpu.pipeline(&without_effect(text)),
            false => self.gpu.pipeline(text),
        }
    }

    fn record(&self, launches: &[Launch]) -> Result<Recording> {
        if self.refuses_recordings.load(Ordering::Relaxed) {
            return Err(self.full("capture a recording", 0, 0));
        }
        if self.recordings.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.lose_behind(0);
            return Err(self.lost());
        }
        self.gpu.record(launches)
    }

    fn submit(&self, recording: &Recording) -> Result<()> {
        self.gpu.submit(recording)
    }

    fn run(&self, launches: &[Launch]) -> Result<()> {
        self.ran.fetch_add(launches.len(), Ordering::Relaxed);
        let by = *self.lost_by.lock().expect("no other user");
        match by.is_some_and(|by| launches.iter().any(|l| l.pipeline.entry() == by)) {
            true => Err(self.lost()),
            false => self.gpu.run(launches),
        }
    }

    fn fetch(&self, behind: Option<&Recording>, ranges: &[Fetch<'_>]) -> Result<Pending> {
        self.gpu.fetch(behind, ranges)
    }

    fn receive(&self, pending: Pending, out: &mut [&mut [u8]]) -> Result<()> {
        self.gpu.receive(pending, out)
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

    fn submissions(&self) -> u64 {
        self.gpu.submissions()
    }

    fn usage(&self) -> Usage {
        self.gpu.usage()
    }
}

/// The text of a kernel that leaves at once.
fn without_effect(text: &KernelText) -> KernelText {
    let mut text = text.clone();
    let mut marks = ["@compute", "__global__"].iter();
    let entry = marks.find_map(|mark| text.source.find(mark));
    let entry = entry.expect("an entry point");
    let body = text.source[entry..].find('{').expect("a body");
    let leave = "\n    if (true) { return; }";
    text.source.insert_str(entry + body + 1, leave);
    text.key.push_str("-without-effect");
    text
}
