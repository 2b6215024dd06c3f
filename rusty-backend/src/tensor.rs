//! One type over host memory, mapped files and device buffers. It knows bytes, not formats.

use crate::memory::Owner;
use crate::{Device, DeviceBuffer, Error, Result};
use rusty_loader::SharedBytes;
use std::sync::Arc;

/// Bytes wherever they lie; cheap to clone.
#[derive(Clone, Debug)]
pub enum UnifiedTensor {
    /// Host memory: a heap buffer or, where [`SharedBytes::is_mapped`], pages of a file.
    Host(SharedBytes),
    /// Device memory.
    Device(DeviceBuffer),
}

impl UnifiedTensor {
    /// A mapped range or any shared host bytes, not copied.
    pub fn from_shared(bytes: SharedBytes) -> Self {
        Self::Host(bytes)
    }

    /// Zeroed host memory, aligned to 64 bytes.
    pub fn zeroed(bytes: usize) -> Self {
        Self::Host(SharedBytes::from_owner(Arc::new(AlignedBytes::zeroed(
            bytes,
        ))))
    }

    /// A copy of `bytes` in host memory aligned to 64 bytes.
    pub fn aligned_copy(bytes: &[u8]) -> Self {
        let mut owner = AlignedBytes::zeroed(bytes.len());
        owner.as_mut().copy_from_slice(bytes);
        Self::Host(SharedBytes::from_owner(Arc::new(owner)))
    }

    /// Length in bytes.
    pub fn byte_len(&self) -> u64 {
        match self {
            Self::Host(bytes) => bytes.len() as u64,
            Self::Device(buffer) => buffer.bytes(),
        }
    }

    /// Whether its bytes are pages of a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self, Self::Host(bytes) if bytes.is_mapped())
    }

    /// The bytes, where they lie in host memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Host(bytes) => Some(bytes),
            Self::Device(_) => None,
        }
    }

    /// The buffer, where they lie in device memory.
    pub fn device_buffer(&self) -> Option<&DeviceBuffer> {
        match self {
            Self::Host(_) => None,
            Self::Device(buffer) => Some(buffer),
        }
    }

    /// The same bytes where `device` computes on them: themselves on the CPU, uploaded in a stream on a GPU.
    ///
    /// A device buffer stays as it is; to move between devices, go through [`UnifiedTensor::to_host`].
    ///
    /// # Errors
    /// As [`GpuDevice::alloc`](crate::GpuDevice::alloc) and [`GpuDevice::write`](crate::GpuDevice::write).
    pub fn to_device(&self, device: &Device, owner: Owner, label: &str) -> Result<Self> {
        let (Self::Host(bytes), Device::Gpu(gpu)) = (self, device) else {
            return match (self, device) {
                (Self::Device(buffer), Device::Cpu(_)) => Err(Error::Foreign {
                    what: format!("buffer {}", buffer.label()),
                }),
                _ => Ok(self.clone()),
            };
        };
        let buffer = gpu.alloc(bytes.len() as u64, owner, label)?;
        gpu.write(&buffer, 0, bytes)?;
        Ok(Self::Device(buffer))
    }

    /// The same bytes in host memory, read back where they lie on `device`.
    ///
    /// # Errors
    /// As [`GpuDevice::read`](crate::GpuDevice::read).
    pub fn to_host(&self, device: &Device) -> Result<Self> {
        match (self, device) {
            (Self::Host(_), _) => Ok(self.clone()),
            (Self::Device(buffer), Device::Gpu(gpu)) => {
                let bytes = gpu.read(buffer, 0, buffer.bytes())?;
                Ok(Self::Host(SharedBytes::from_vec(bytes)))
            }
            (Self::Device(buffer), Device::Cpu(_)) => Err(Error::Foreign {
                what: format!("buffer {}", buffer.label()),
            }),
        }
    }
}

/// Bytes in cache-line-sized, cache-line-aligned pieces.
struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Line([u8; 64]);

impl AlignedBytes {
    fn zeroed(len: usize) -> Self {
        let lines = vec![Line([0; 64]); len.div_ceil(64)];
        Self { lines, len }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl AsMut<[u8]> for AlignedBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
