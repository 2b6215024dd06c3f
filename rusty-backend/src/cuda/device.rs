//! A CUDA device behind the seam: one context, one stream that all work goes through.

use super::graph::{CudaKernel, Graph, Prepared};
use super::memory::DeviceMemory;
use super::transfer::{RING_BYTES, Ring, SMALL};
use super::{facts, failed, nvrtc};
use crate::memory::{Accounts, Charge, Owner, Usage};
use crate::{
    DeviceBuffer, Error, GpuDevice, KernelText, Language, Launch, Pipeline, Recording, Result,
    Target,
};
use cudarc::driver::sys::CUfunction_attribute as FunctionAttribute;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use cudarc::nvrtc::Ptx;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Dynamic shared memory that a kernel may use without asking the driver first.
const SHARED_BY_DEFAULT: u32 = 48 << 10;

/// An opened CUDA device.
pub struct CudaDevice {
    target: Target,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Captures recordings; its lock also serialises submissions.
    capture: Mutex<Arc<CudaStream>>,
    accounts: Arc<Accounts>,
    ring: Mutex<Option<(Ring, Charge)>>,
    pipelines: Mutex<HashMap<String, Pipeline>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaDevice {
    pub(super) fn open(ordinal: usize, memory_limit: Option<u64>) -> Result<Self, DriverError> {
        let context = CudaContext::new(ordinal)?;
        // SAFETY: all work goes through one stream, so cudarc's events between streams are not needed; they
        // would also end up in captures.
        unsafe { context.disable_event_tracking() };
        let mut target = facts::target(&context)?;
        // Others use the device too: what they have is not to be had.
        let free = context.mem_get_info()?.0 as u64;
        target.memory_bytes = memory_limit.unwrap_or(u64::MAX).min(free);
        Ok(Self {
            accounts: Accounts::new(&target.name, target.memory_bytes),
            stream: context.new_stream()?,
            capture: Mutex::new(context.new_stream()?),
            ring: Mutex::default(),
            pipelines: Mutex::default(),
            target,
            context,
        })
    }

    fn failed(&self, call: &str, error: DriverError) -> Error {
        failed(&self.target.name, call, error)
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
        let load = |image| {
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
        let function = load(image).or_else(|error: DriverError| {
            let digest = nvrtc::digest(&text.source);
            tracing::warn!("machine code of {digest} from a package or cache does not load: {error}; compiling it");
            let image = nvrtc::fresh_machine_code(&text.source, arch).map_err(refuse)?;
            load(image).map_err(|e| refuse(e.to_string()))
        })?;
        Ok(CudaKernel {
            function,
            unit_dim: text.unit_dim,
            shared_bytes: text.shared_bytes,
        })
    }

    fn write_large(&self, address: sys::CUdeviceptr, data: &[u8], label: &str) -> Result<()> {
        let mut ring = lock(&self.ring);
        if ring.is_none() {
            let charge = self.accounts.charge(Owner::Staging, RING_BYTES)?;
            let made = Ring::new(&self.stream).map_err(|e| self.failed("make the ring", e))?;
            *ring = Some((made, charge));
        }
        let Some((ring, _)) = ring.as_mut() else {
            return Ok(());
        };
        ring.write(address, data)
            .map_err(|e| self.failed(&format!("write {label}"), e))
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
        let memory = match DeviceMemory::new(&self.context, size as usize) {
            Ok(memory) => memory,
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                // Others use the device too: say what it has left, not what this process may have.
                let (free, total) = self.context.mem_get_info().unwrap_or((0, 0));
                return Err(Error::OutOfMemory {
                    device: self.target.name.clone(),
                    owner: owner.word().into(),
                    asked: size,
                    used: (total - free) as u64,
                    limit: total as u64,
                });
            }
            Err(error) => return Err(self.failed(&call, error)),
        };
        // SAFETY: the range was just allocated with this size.
        unsafe {
            result::memset_d8_async(memory.address(), 0, size as usize, self.stream.cu_stream())
        }
        .map_err(|e| self.failed(&call, e))?;
        Ok(DeviceBuffer::new(Box::new(memory), bytes, label, charge))
    }

    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()> {
        buffer.check_transfer(offset, data.len() as u64)?;
        let address = buffer.raw::<DeviceMemory>()?.address() + offset;
        if data.is_empty() {
            return Ok(());
        }
        if data.len() > SMALL {
            return self.write_large(address, data, buffer.label());
        }
        self.bind()?;
        // SAFETY: the range was checked; from pageable memory the driver has taken the bytes when it returns.
        unsafe { result::memcpy_htod_async(address, data, self.stream.cu_stream()) }
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
        let graph = Graph::capture(&capture, &self.stream, &prepared)
            .map_err(|e| self.failed("capture a recording", e))?;
        Ok(Recording::new(Box::new(graph), launches))
    }

    fn submit(&self, recording: &Recording) -> Result<()> {
        let graph: &Option<Graph> = recording.raw()?;
        let _serial = lock(&self.capture);
        graph.as_ref().map_or(Ok(()), |graph| {
            graph.launch().map_err(|e| self.failed("submit", e))
        })
    }

    fn run(&self, launches: &[Launch]) -> Result<()> {
        let prepared = self.prepare(launches)?;
        self.bind()?;
        let _serial = lock(&self.capture);
        for (prepared, launch) in prepared.iter().zip(launches) {
            prepared
                .launch(&self.stream)
                .map_err(|e| self.failed(&format!("launch {}", launch.label), e))?;
        }
        Ok(())
    }

    fn read_into(&self, buffer: &DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()> {
        buffer.check_transfer(offset, out.len() as u64)?;
        let address = buffer.raw::<DeviceMemory>()?.address() + offset;
        self.bind()?;
        if !out.is_empty() {
            // SAFETY: the range was checked, and `out` is not used before the stream was waited for.
            unsafe { result::memcpy_dtoh_async(out, address, self.stream.cu_stream()) }
                .map_err(|e| self.failed(&format!("read {}", buffer.label()), e))?;
        }
        self.synchronize()
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
        let source = from.raw::<DeviceMemory>()?.address() + from_offset;
        let target = to.raw::<DeviceMemory>()?.address() + to_offset;
        self.bind()?;
        // SAFETY: both ranges were checked, and do not overlap by contract.
        unsafe { result::memcpy_dtod_async(target, source, len as usize, self.stream.cu_stream()) }
            .map_err(|e| self.failed(&format!("copy {} to {}", from.label(), to.label()), e))
    }

    fn synchronize(&self) -> Result<()> {
        self.stream
            .synchronize()
            .map_err(|e| self.failed("synchronize", e))
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
