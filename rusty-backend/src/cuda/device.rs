//! A CUDA device behind the seam: one context, a stream of kernels and one of uploads.

use super::graph::{CudaKernel, Graph, Prepared};
use super::memory::{DeviceMemory, Turns, usable};
use super::order::Queues;
use super::read_back::ReadBack;
use super::transfer::{RING_BYTES, Ring, SMALL};
use super::{facts, failed, is_full, nvrtc};
use crate::cuda_overlap::AWAIT;
use crate::memory::{Accounts, Charge, Owner, Usage};
use crate::{
    DeviceBuffer, Error, Fetch, GpuDevice, KernelText, Language, Launch, Pending, Pipeline,
    Recording, Result, Target,
};
use cudarc::driver::sys::CUfunction_attribute as FunctionAttribute;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use cudarc::nvrtc::Ptx;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Dynamic shared memory that a kernel may use without asking the driver first.
const SHARED_BY_DEFAULT: u32 = 48 << 10;
/// Bytes of the smallest memory that results come back through.
const LEAST_READ: usize = 4096;

/// An opened CUDA device.
pub struct CudaDevice {
    target: Target,
    context: Arc<CudaContext>,
    queues: Queues<Arc<CudaStream>>,
    /// Captures recordings; its lock also serialises submissions.
    capture: Mutex<Arc<CudaStream>>,
    accounts: Arc<Accounts>,
    ring: Mutex<Option<(Ring, Charge)>>,
    /// What nobody reads through now.
    read_back: Mutex<Vec<ReadBack>>,
    submissions: AtomicU64,
    /// Whether kernels of a recording begin while those before them end.
    overlaps: AtomicBool,
    pipelines: Mutex<HashMap<String, Pipeline>>,
}

/// Whether kernels of an architecture can wait for each other, and nobody asked that they do not: `RUSTY_CUDA_OVERLAP=0` tells how much
/// it gains.
fn overlaps(arch: u32) -> bool {
    arch >= 90 && std::env::var("RUSTY_CUDA_OVERLAP").map_or(true, |wanted| wanted != "0")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaDevice {
    pub(super) fn open(ordinal: usize, memory_limit: Option<u64>) -> Result<Self, DriverError> {
        let context = CudaContext::new(ordinal)?;
        // SAFETY: cudarc's own slices are not used, and work of two streams is ordered by events of ours (`order.rs`);
        // cudarc's would also end up in captures.
        unsafe { context.disable_event_tracking() };
        let mut target = facts::target(&context)?;
        // Others use the device too: what they have is not to be had.
        let free = context.mem_get_info()?.0 as u64;
        target.memory_bytes = usable(free, memory_limit);
        Ok(Self {
            accounts: Accounts::new(&target.name, target.memory_bytes),
            queues: Queues::new(
                context.new_stream()?,
                context.new_stream()?,
                context.new_event(None)?,
            ),
            capture: Mutex::new(context.new_stream()?),
            ring: Mutex::default(),
            read_back: Mutex::default(),
            submissions: AtomicU64::new(0),
            overlaps: AtomicBool::new(overlaps(target.cuda_arch)),
            pipelines: Mutex::default(),
            target,
            context,
        })
    }

    fn failed(&self, call: &str, error: DriverError) -> Error {
        match is_full(error) {
            true => self.full(call, 0),
            false => failed(&self.target.name, call, error),
        }
    }

    /// The error for memory that the driver does not have; `asked` is 0 where it does not tell how much it wants.
    fn full(&self, who: &str, asked: u64) -> Error {
        // Others use the device too: say what it has left, not what this process may have.
        let (free, total) = self.context.mem_get_info().unwrap_or((0, 0));
        Error::OutOfMemory {
            device: self.target.name.clone(),
            owner: who.into(),
            asked,
            used: (total - free) as u64,
            limit: total as u64,
        }
    }

    fn bind(&self) -> Result<()> {
        self.context
            .bind_to_thread()
            .map_err(|e| self.failed("bind the context", e))
    }

    fn prepare<'a>(&self, launches: &'a [Launch]) -> Result<Vec<Prepared<'a>>> {
        let prepared = launches.iter().map(|launch| {
            launch.check(&self.target)?;
            Prepared::new(launch)
        });
        prepared.collect()
    }

    fn compile(&self, text: &KernelText) -> Result<CudaKernel> {
        let refuse = |log: String| Error::Kernel {
            device: self.target.name.clone(),
            entry: text.entry.clone(),
            log,
        };
        if text.language != Language::CudaC {
            return Err(refuse(format!(
                "the text is {:?}, not CUDA C++",
                text.language
            )));
        }
        let arch = self.target.cuda_arch;
        let load = |image| -> Result<_, DriverError> {
            let module = self.context.load_module(Ptx::from_binary(image))?;
            let function = module.load_function(&text.entry)?;
            if text.shared_bytes > SHARED_BY_DEFAULT {
                function.set_attribute(
                    FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    text.shared_bytes.min(i32::MAX as u32) as i32,
                )?;
            }
            Ok(function)
        };
        let image = nvrtc::cached_machine_code(&text.source, arch).map_err(refuse)?;
        let loaded = match load(image) {
            Err(error) if !is_full(error) => {
                let digest = nvrtc::digest(&text.source);
                tracing::warn!(
                    "machine code of {digest} from a package or cache does not load: {error}; compiling it"
                );
                load(nvrtc::fresh_machine_code(&text.source, arch).map_err(refuse)?)
            }
            loaded => loaded,
        };
        // A device that is full refuses no kernel: another one would find no more room.
        let function = loaded.map_err(|error| match is_full(error) {
            true => self.failed(&format!("load {}", text.entry), error),
            false => refuse(error.to_string()),
        })?;
        Ok(CudaKernel {
            function,
            unit_dim: text.unit_dim,
            shared_bytes: text.shared_bytes,
            awaits: text.source.contains(AWAIT),
        })
    }

    /// Writes through the ring, on the stream that the memory is uploaded on.
    fn write_large(
        &self,
        turns: Option<&Arc<Turns>>,
        address: sys::CUdeviceptr,
        data: &[u8],
        label: &str,
    ) -> Result<()> {
        let mut ring = lock(&self.ring);
        if ring.is_none() {
            let charge = self.accounts.charge(Owner::Staging, RING_BYTES)?;
            let made = Ring::new(&self.context).map_err(|e| self.failed("make the ring", e))?;
            *ring = Some((made, charge));
        }
        let Some((ring, _)) = ring.as_mut() else {
            return Ok(());
        };
        self.queues
            .write(turns, |stream| ring.write(stream, address, data))
            .map_err(|e| self.failed(&format!("write {label}"), e))
    }

    /// Memory of at least `bytes` to read through, which nobody else uses.
    fn read_back(&self, bytes: usize) -> Result<ReadBack> {
        let idle = lock(&self.read_back).pop();
        if let Some(idle) = idle.filter(|idle| idle.size() >= bytes) {
            return Ok(idle);
        }
        let size = bytes.next_power_of_two().max(LEAST_READ);
        let charge = self.accounts.charge(Owner::Staging, size as u64)?;
        ReadBack::new(&self.context, size, charge)
            .map_err(|e| self.failed("alloc memory to read through", e))
    }

    /// Counts what is handed to the driver.
    fn count(&self) {
        self.submissions.fetch_add(1, Ordering::Relaxed);
    }
}

impl GpuDevice for CudaDevice {
    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer> {
        let size = bytes.max(4).next_multiple_of(4);
        let charge = self.accounts.charge(owner, size)?;
        let call = format!("alloc {label}");
        let beside = owner == Owner::Weights;
        let memory = match DeviceMemory::new(&self.context, size as usize, beside) {
            Ok(memory) => memory,
            Err(error) if is_full(error) => return Err(self.full(owner.word(), size)),
            Err(error) => return Err(self.failed(&call, error)),
        };
        let zero = |stream: &Arc<CudaStream>| {
            // SAFETY: the range was just allocated with this size.
            unsafe {
                result::memset_d8_async(memory.address(), 0, size as usize, stream.cu_stream())
            }
        };
        self.queues
            .write(memory.turns(), zero)
            .map_err(|e| self.failed(&call, e))?;
        Ok(DeviceBuffer::new(Box::new(memory), bytes, label, charge))
    }

    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()> {
        buffer.check_transfer(offset, data.len() as u64)?;
        let memory: &DeviceMemory = buffer.raw()?;
        let address = memory.address() + offset;
        if data.is_empty() {
            return Ok(());
        }
        if data.len() > SMALL {
            return self.write_large(memory.turns(), address, data, buffer.label());
        }
        self.bind()?;
        let copy = |stream: &Arc<CudaStream>| {
            // SAFETY: the range was checked; from pageable memory the driver has taken the bytes when it returns.
            unsafe { result::memcpy_htod_async(address, data, stream.cu_stream()) }
        };
        self.queues
            .write(memory.turns(), copy)
            .map_err(|e| self.failed(&format!("write {}", buffer.label()), e))
    }

    fn pipeline(&self, text: &KernelText) -> Result<Pipeline> {
        if let Some(known) = lock(&self.pipelines).get(&text.key) {
            return Ok(known.clone());
        }
        // The lock is not held while compiling, so that many threads can.
        let pipeline = Pipeline::new(Box::new(self.compile(text)?), text);
        if !text.key.is_empty() {
            lock(&self.pipelines).insert(text.key.clone(), pipeline.clone());
        }
        Ok(pipeline)
    }

    fn record(&self, launches: &[Launch]) -> Result<Recording> {
        let prepared = self.prepare(launches)?;
        self.bind()?;
        let capture = lock(&self.capture);
        let made = |overlap| Graph::capture(&capture, &self.queues.kernels, &prepared, overlap);
        let overlaps = self.overlaps.load(Ordering::Relaxed);
        let graph = match made(overlaps) {
            Err(error) if overlaps && !is_full(error) => {
                tracing::warn!("{}: launches do not overlap: {error}", self.target.name);
                self.overlaps.store(false, Ordering::Relaxed);
                made(false)
            }
            made => made,
        };
        let graph = graph.map_err(|e| self.failed("capture a recording", e))?;
        Ok(Recording::new(Box::new(graph), launches))
    }

    fn submit(&self, recording: &Recording) -> Result<()> {
        let graph: &Option<Graph> = recording.raw()?;
        let Some(graph) = graph else { return Ok(()) };
        let _serial = lock(&self.capture);
        self.count();
        self.queues
            .launch(graph.bound(), |_| graph.launch())
            .map_err(|e| self.failed("submit", e))
    }

    fn run(&self, launches: &[Launch]) -> Result<()> {
        let prepared = self.prepare(launches)?;
        self.bind()?;
        let _serial = lock(&self.capture);
        for (prepared, launch) in prepared.iter().zip(launches) {
            self.count();
            self.queues
                .launch(prepared.bound(), |stream| prepared.launch(stream, false))
                .map_err(|e| self.failed(&format!("launch {}", launch.label), e))?;
        }
        Ok(())
    }

    fn fetch(&self, behind: Option<&Recording>, ranges: &[Fetch<'_>]) -> Result<Pending> {
        let mut sources = Vec::with_capacity(ranges.len());
        let mut bound = Vec::new();
        for range in ranges.iter() {
            range.check()?;
            let memory: &DeviceMemory = range.buffer.raw()?;
            sources.push((memory.address() + range.offset, range.len));
            bound.extend(memory.turns().cloned());
        }
        self.bind()?;
        let bytes: usize = sources.iter().map(|(_, len)| len).sum();
        let mut through = self.read_back(bytes)?;
        behind.map_or(Ok(()), |recording| self.submit(recording))?;
        let enqueued = self
            .queues
            .launch(&bound, |stream| through.enqueue(stream, &sources));
        match enqueued {
            Ok(()) => Ok(Pending::new(Box::new(through), ranges)),
            Err(error) => {
                // Copies that were enqueued have no event behind them.
                if let Err(also) = self.queues.kernels.synchronize() {
                    tracing::debug!("a read that failed has not ended: {also}");
                }
                Err(self.failed(&Fetch::call(ranges), error))
            }
        }
    }

    fn receive(&self, pending: Pending, out: &mut [&mut [u8]]) -> Result<()> {
        let mut through: ReadBack = pending.into_raw(out)?;
        self.bind()?;
        through
            .hand_out(out)
            .map_err(|e| self.failed("read what was fetched", e))?;
        lock(&self.read_back).push(through);
        Ok(())
    }

    fn copy(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &DeviceBuffer,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        from.check_transfer(from_offset, len)?;
        to.check_transfer(to_offset, len)?;
        let (source, target): (&DeviceMemory, &DeviceMemory) = (from.raw()?, to.raw()?);
        let turns = source.turns().into_iter().chain(target.turns());
        let bound: Vec<Arc<Turns>> = turns.cloned().collect();
        let (source, target) = (source.address() + from_offset, target.address() + to_offset);
        self.bind()?;
        let copy = |stream: &Arc<CudaStream>| {
            // SAFETY: both ranges were checked, and do not overlap by contract.
            unsafe { result::memcpy_dtod_async(target, source, len as usize, stream.cu_stream()) }
        };
        self.queues
            .launch(&bound, copy)
            .map_err(|e| self.failed(&format!("copy {} to {}", from.label(), to.label()), e))
    }

    fn synchronize(&self) -> Result<()> {
        let Queues {
            kernels, uploads, ..
        } = &self.queues;
        let ended = uploads.synchronize().and_then(|()| kernels.synchronize());
        ended.map_err(|e| self.failed("synchronize", e))
    }

    fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }

    fn usage(&self) -> Usage {
        self.accounts.usage()
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({})", self.target.name)
    }
}
