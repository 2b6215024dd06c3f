//! Device buffers: handles that free their memory, and its booking, with the last clone.

use crate::memory::{Charge, Owner};
use crate::{Error, Result};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A range of device memory; cheap to clone, freed with the last clone.
#[derive(Clone)]
pub struct DeviceBuffer(Arc<Inner>);

struct Inner {
    // Declared before the charge: memory goes back before its booking does.
    raw: Box<dyn Any + Send + Sync>,
    charge: Charge,
    label: String,
    bytes: u64,
}

impl DeviceBuffer {
    /// Wraps a device's own buffer type; for implementations of [`GpuDevice`](crate::GpuDevice).
    pub fn new(
        raw: Box<dyn Any + Send + Sync>,
        bytes: u64,
        label: impl Into<String>,
        charge: Charge,
    ) -> Self {
        Self(Arc::new(Inner {
            raw,
            charge,
            label: label.into(),
            bytes,
        }))
    }

    /// The device's own buffer type.
    ///
    /// # Errors
    /// [`Error::Foreign`] where the buffer was made by another kind of device.
    pub fn raw<T: 'static>(&self) -> Result<&T> {
        self.0.raw.downcast_ref().ok_or_else(|| Error::Foreign {
            what: format!("buffer {}", self.0.label),
        })
    }

    /// Its length in bytes, as asked for; the memory is rounded up to a multiple of 4.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// What it is for.
    pub fn owner(&self) -> Owner {
        self.0.charge.owner()
    }

    /// Its name in errors and traces.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// All of it as a launch operand.
    pub fn whole(&self) -> BufferSlice {
        self.slice(0, self.capacity())
    }

    fn capacity(&self) -> u64 {
        self.0.bytes.max(4).next_multiple_of(4)
    }

    /// `len` bytes from `offset` as a launch operand; checked when the launch is recorded.
    pub fn slice(&self, offset: u64, len: u64) -> BufferSlice {
        BufferSlice {
            buffer: self.clone(),
            offset,
            len,
        }
    }

    /// Whether both are the same memory.
    pub fn same(&self, other: &DeviceBuffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Checks that `offset..offset + len` lies inside.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn check(&self, offset: u64, len: u64) -> Result<()> {
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.capacity());
        if inside {
            return Ok(());
        }
        Err(self.range_error(offset, len))
    }

    /// Checks a range that is copied: `offset` is a multiple of 4, and so is `len` unless it ends the buffer.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn check_transfer(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let whole_words = len.is_multiple_of(4) || offset + len == self.0.bytes;
        if offset.is_multiple_of(4) && whole_words {
            return Ok(());
        }
        Err(self.range_error(offset, len))
    }

    fn range_error(&self, offset: u64, len: u64) -> Error {
        Error::Range {
            buffer: self.0.label.clone(),
            bytes: self.0.bytes,
            offset,
            len,
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DeviceBuffer({}, {} bytes, {})",
            self.0.label,
            self.0.bytes,
            self.owner()
        )
    }
}

/// A range of a buffer as an operand of a launch.
#[derive(Clone, Debug)]
pub struct BufferSlice {
    /// The buffer.
    pub buffer: DeviceBuffer,
    /// First byte; a multiple of [`Target::binding_align`](crate::Target::binding_align).
    pub offset: u64,
    /// Length in bytes; a multiple of 4.
    pub len: u64,
}
