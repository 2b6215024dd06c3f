//! Kernels, their launches and graphs of them.

use super::memory::{DeviceMemory, Turns};
use crate::{Launch, Result};
use cudarc::driver::{CudaFunction, CudaGraph, CudaStream, DriverError, result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// A loaded kernel.
#[derive(Debug)]
pub(super) struct CudaKernel {
    pub(super) function: CudaFunction,
    pub(super) unit_dim: [u32; 3],
    pub(super) shared_bytes: u32,
    /// Whether it waits itself for the launch before it, and so may begin while that one ends.
    pub(super) awaits: bool,
}

/// A launch with its arguments laid out: addresses of the buffers, then the info block.
#[derive(Debug)]
pub(super) struct Prepared<'a> {
    kernel: &'a CudaKernel,
    addresses: Vec<sys::CUdeviceptr>,
    /// Of the buffers that are uploaded beside kernels.
    bound: Vec<Arc<Turns>>,
    info: &'a [u64],
    groups: [u32; 3],
}

impl<'a> Prepared<'a> {
    /// Lays out `launch`, which was checked.
    pub(super) fn new(launch: &'a Launch) -> Result<Self> {
        let mut addresses = Vec::with_capacity(launch.buffers.len());
        let mut bound = Vec::new();
        for slice in &launch.buffers {
            let memory: &DeviceMemory = slice.buffer.raw()?;
            addresses.push(memory.address() + slice.offset);
            bound.extend(memory.turns().cloned());
        }
        Ok(Self {
            kernel: launch.pipeline.raw()?,
            addresses,
            bound,
            info: &launch.info,
            groups: launch.groups,
        })
    }

    /// What has to be in turn where it is launched.
    pub(super) fn bound(&self) -> &[Arc<Turns>] {
        &self.bound
    }

    /// Enqueues it on `stream`, or adds it to the graph that the stream captures; one that begins `early` may do so while the launch
    /// before it ends, where its kernel awaits that.
    pub(super) fn launch(&self, stream: &CudaStream, early: bool) -> Result<(), DriverError> {
        if self.groups.contains(&0) {
            return Ok(());
        }
        let mut arguments: Vec<*mut c_void> = self
            .addresses
            .iter()
            .map(|address| std::ptr::from_ref(address).cast_mut().cast())
            .collect();
        if !self.info.is_empty() {
            arguments.push(self.info.as_ptr().cast_mut().cast());
        }
        let [x, y, z] = self.groups;
        let [ux, uy, uz] = self.kernel.unit_dim;
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: Default::default(),
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: ux,
            blockDimY: uy,
            blockDimZ: uz,
            sharedMemBytes: self.kernel.shared_bytes,
            hStream: stream.cu_stream(),
            attrs: &raw mut overlap,
            numAttrs: u32::from(early && self.kernel.awaits),
        };
        // SAFETY: the arguments are those that the text declares (its bindings in order, then its info block,
        // which the driver copies before it returns); buffers are alive as long as the recording or the queue
        // needs them, and the compiler's kernels keep to their lengths.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                self.kernel.function.cu_function(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
            .result()
        }
    }
}

/// Launches of a graph's first part. The host enqueues a graph in time that grows with it (on an H100's host 44 us for 141 launches),
/// in which nothing runs: so it enqueues a few launches first, which take about as long to run, and meanwhile the others.
const FIRST_PART: usize = 12;

/// Graphs of launches, enqueued one after the other.
pub(super) struct Graph {
    parts: Vec<CudaGraph>,
    queue: Arc<CudaStream>,
    bound: Vec<Arc<Turns>>,
}

// SAFETY: a graph is used only under the device's queue lock (see `CudaDevice::submit`), except for its
// destruction, which needs sole ownership.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Graph {
    /// Captures `launches` on `capture`, to be enqueued on `queue`; `None` where there is nothing to do. With `overlap`, kernels that
    /// await those before them begin early.
    pub(super) fn capture(
        capture: &Arc<CudaStream>,
        queue: &Arc<CudaStream>,
        launches: &[Prepared<'_>],
        overlap: bool,
    ) -> Result<Option<Self>, DriverError> {
        let first = match launches.len() > 2 * FIRST_PART {
            true => FIRST_PART,
            false => launches.len(),
        };
        let (first, rest) = launches.split_at(first);
        let parts = [first, rest].map(|part| captured(capture, part, overlap));
        let [first, rest] = parts;
        let parts: Vec<CudaGraph> = first?.into_iter().chain(rest?).collect();
        if parts.is_empty() {
            return Ok(None);
        }
        capture.synchronize()?;
        let mut bound: Vec<_> = launches.iter().flat_map(Prepared::bound).cloned().collect();
        bound.sort_unstable_by_key(Arc::as_ptr);
        bound.dedup_by(|a, b| Arc::ptr_eq(a, b));
        Ok(Some(Self {
            parts,
            queue: Arc::clone(queue),
            bound,
        }))
    }

    /// What has to be in turn where it is launched.
    pub(super) fn bound(&self) -> &[Arc<Turns>] {
        &self.bound
    }

    /// Enqueues it; the caller holds the queue lock.
    pub(super) fn launch(&self) -> Result<(), DriverError> {
        self.queue.context().bind_to_thread()?;
        let launch = |part: &CudaGraph| {
            // SAFETY: graph and stream are alive, and the caller serialises launches of one graph.
            unsafe { result::graph::launch(part.cu_graph_exec(), self.queue.cu_stream()) }
        };
        self.parts.iter().try_for_each(launch)
    }
}

/// A graph of `launches`, uploaded; `None` where there are none.
fn captured(
    capture: &Arc<CudaStream>,
    launches: &[Prepared<'_>],
    overlap: bool,
) -> Result<Option<CudaGraph>, DriverError> {
    if launches.is_empty() {
        return Ok(None);
    }
    capture.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let mut before = false;
    let launched = launches.iter().try_for_each(|launch| {
        // One that never says that others may begin ends first in any case, and to await it costs more than to come behind it.
        let early = overlap && before;
        if !launch.groups.contains(&0) {
            before = launch.kernel.awaits;
        }
        launch.launch(capture, early)
    });
    // A capture is ended even where a launch was refused, or the stream would be of no more use.
    let graph = capture.end_capture(sys::CUgraphInstantiate_flags(0));
    launched?;
    let graph = graph?;
    graph.iter().try_for_each(CudaGraph::upload)?;
    Ok(graph)
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A graph that is running must not be destroyed.
        if let Err(error) = self.queue.synchronize() {
            tracing::debug!("a graph is dropped on a stream that failed: {error}");
        }
    }
}
