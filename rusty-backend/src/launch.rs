//! Kernel text, pipelines, launches and recordings: what a compiler hands to a device.

use crate::{BufferSlice, Error, Language, Result, Target};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// How a kernel uses a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BindingAccess {
    /// Read only.
    Read,
    /// Read and written.
    ReadWrite,
}

/// A kernel as text for one device language.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelText {
    /// Entry point.
    pub entry: String,
    /// Source.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Its language.
    pub language: Language,
    /// Access of each buffer binding in order, the info block not among them.
    pub bindings: Vec<BindingAccess>,
    /// Whether the text takes an info block after the buffers (last storage binding under wgpu, a struct by
    /// value under CUDA).
    pub info: bool,
    /// Units of a group per dimension.
    pub unit_dim: [u32; 3],
    /// Shared memory that the launch must reserve, in bytes (CUDA's `extern __shared__`; WGSL declares its own).
    pub shared_bytes: u32,
    /// Names this text: texts with the same non-empty key on one device are compiled once.
    pub key: String,
}

/// A compiled kernel; cheap to clone.
#[derive(Clone)]
pub struct Pipeline(Arc<PipelineInner>);

struct PipelineInner {
    raw: Box<dyn Any + Send + Sync>,
    entry: String,
    bindings: Vec<BindingAccess>,
    info: bool,
}

impl Pipeline {
    /// Wraps a device's own pipeline type; for implementations of [`GpuDevice`](crate::GpuDevice).
    pub fn new(raw: Box<dyn Any + Send + Sync>, text: &KernelText) -> Self {
        Self(Arc::new(PipelineInner {
            raw,
            entry: text.entry.clone(),
            bindings: text.bindings.clone(),
            info: text.info,
        }))
    }

    /// The device's own pipeline type.
    ///
    /// # Errors
    /// [`Error::Foreign`] where another kind of device made it.
    pub fn raw<T: 'static>(&self) -> Result<&T> {
        self.0.raw.downcast_ref().ok_or_else(|| Error::Foreign {
            what: format!("pipeline {}", self.0.entry),
        })
    }

    /// Its entry point.
    pub fn entry(&self) -> &str {
        &self.0.entry
    }

    /// Access of each buffer binding.
    pub fn bindings(&self) -> &[BindingAccess] {
        &self.0.bindings
    }

    /// Whether it takes an info block.
    pub fn info(&self) -> bool {
        self.0.info
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipeline({})", self.0.entry)
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub pipeline: Pipeline,
    /// Its operands in binding order.
    pub buffers: Vec<BufferSlice>,
    /// CubeCL's info block: scalars, then buffer lengths. Empty where the kernel takes none.
    pub info: Vec<u64>,
    /// Groups per dimension.
    pub groups: [u32; 3],
    /// Name in errors and traces.
    pub label: String,
}

impl Launch {
    /// Checks the launch against its pipeline and the limits of `target`.
    ///
    /// # Errors
    /// [`Error::Launch`], [`Error::Range`] or [`Error::TooLarge`], naming the launch or the buffer.
    pub fn check(&self, target: &Target) -> Result<()> {
        let align = target.binding_align;
        let refuse = |reason: String| Error::Launch {
            label: self.label.clone(),
            entry: self.pipeline.entry().into(),
            reason,
        };
        let want = self.pipeline.bindings().len();
        if self.buffers.len() != want {
            let has = self.buffers.len();
            return Err(refuse(format!("{has} buffers for {want} bindings")));
        }
        if self.info.is_empty() == self.pipeline.info() {
            return Err(refuse(format!(
                "info block of {} words where the kernel {} one",
                self.info.len(),
                if self.pipeline.info() {
                    "takes"
                } else {
                    "does not take"
                }
            )));
        }
        let groups = self.groups;
        let fits = groups
            .iter()
            .zip(target.max_groups)
            .all(|(g, max)| *g <= max);
        if !fits {
            return Err(refuse(format!(
                "{groups:?} groups where {:?} is the most",
                target.max_groups
            )));
        }
        for (index, slice) in self.buffers.iter().enumerate() {
            slice.buffer.check(slice.offset, slice.len)?;
            if slice.len > target.max_binding_bytes {
                return Err(Error::TooLarge {
                    device: target.name.clone(),
                    what: format!("binding {index} of launch {}", self.label),
                    asked: slice.len,
                    limit: target.max_binding_bytes,
                });
            }
            if !slice.offset.is_multiple_of(align) || !slice.len.is_multiple_of(4) || slice.len == 0
            {
                return Err(refuse(format!(
                    "binding {index} ({}): offset {} must be a multiple of {align}, length {} a positive multiple of 4",
                    slice.buffer.label(),
                    slice.offset,
                    slice.len
                )));
            }
        }
        Ok(())
    }
}

/// Launches made ready to be enqueued as one unit, any number of times; cheap to clone.
#[derive(Clone)]
pub struct Recording(Arc<RecordingInner>);

struct RecordingInner {
    raw: Box<dyn Any + Send + Sync>,
    // Operands stay alive as long as the recording does.
    _launches: Vec<Launch>,
    count: usize,
}

impl Recording {
    /// Wraps a device's own recording type; for implementations of [`GpuDevice`](crate::GpuDevice).
    pub fn new(raw: Box<dyn Any + Send + Sync>, launches: &[Launch]) -> Self {
        Self(Arc::new(RecordingInner {
            raw,
            _launches: launches.to_vec(),
            count: launches.len(),
        }))
    }

    /// The device's own recording type.
    ///
    /// # Errors
    /// [`Error::Foreign`] where another kind of device made it.
    pub fn raw<T: 'static>(&self) -> Result<&T> {
        self.0.raw.downcast_ref().ok_or_else(|| Error::Foreign {
            what: format!("recording of {} launches", self.0.count),
        })
    }

    /// Launches in it.
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// Whether it holds no launch.
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recording({} launches)", self.0.count)
    }
}
