//! Weights that a [`Pattern`] makes, made in the device's memory: the host makes, holds and uploads nothing of them.

use super::kernels::env::BINDINGS;
use super::kernels::random::{RandomConfig, scalar};
use super::text::{KernelSpec, Kind, info};
use crate::Result;
use rusty_backend::{DeviceBuffer, GpuDevice, Launch, Owner, Pipeline};
use rusty_loader::SharedBytes;
use rusty_loader::random::Pattern;
use std::collections::HashMap;

/// Units of a cube.
const UNITS: u32 = 128;
/// Most cubes in one dimension, as other kernels have it.
const MOST_CUBES: u32 = 1 << 15;
/// Bytes of a buffer that stands for one that the kernel does not use.
const UNUSED: u64 = 256;

/// Makes weights on a device.
pub struct Maker {
    pipeline: Pipeline,
    /// Patterns' tables, which tensors of one format share.
    tables: HashMap<Vec<u8>, DeviceBuffer>,
    /// In place of activations, vectors, operands and adapters: each of its own, because one is bound in one way only.
    unused: [DeviceBuffer; BINDINGS - 2],
}

impl Maker {
    /// Compiles the kernel.
    ///
    /// # Errors
    /// [`Error::Target`](crate::Error::Target) and [`Error::Device`](crate::Error::Device) where the device does not take it or has no
    /// memory left.
    pub fn new(device: &dyn GpuDevice) -> Result<Self> {
        let spec = KernelSpec {
            kind: Kind::Random(RandomConfig { units: UNITS }),
            scalars: scalar::COUNT,
        };
        let pipeline = device.pipeline(&spec.found_text(device.target())?)?;
        let unused = || device.alloc(UNUSED, Owner::Other, "unused");
        Ok(Self {
            pipeline,
            tables: HashMap::new(),
            unused: [unused()?, unused()?, unused()?, unused()?],
        })
    }

    /// Makes promised bytes in a buffer of the device from byte `at` on, a multiple of four, behind all that was enqueued before. Others
    /// are left to be [written](GpuDevice::write): whether it made them.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn make(
        &mut self,
        bytes: &SharedBytes,
        (buffer, at): (&DeviceBuffer, u64),
        device: &dyn GpuDevice,
    ) -> Result<bool> {
        let Some((pattern, first)) = bytes.pattern() else {
            return Ok(false);
        };
        if bytes.is_empty() {
            return Ok(true);
        }
        let words = bytes.len().div_ceil(4) as u32;
        let table = self.table(pattern, device)?;
        let [arena, vectors, step, pool] = &self.unused;
        let buffers = [&table, arena, vectors, step, buffer, pool];
        let most = device.target().max_groups[0].min(MOST_CUBES);
        let cubes = words.div_ceil(UNITS);
        let across = cubes.min(most);
        let scalars = scalars(pattern, first, bytes.len(), at);
        let launch = Launch {
            pipeline: self.pipeline.clone(),
            buffers: buffers.iter().map(|b| b.whole()).collect(),
            info: info(&scalars, buffers.map(|b| b.bytes() / 4)),
            groups: [across, cubes.div_ceil(across), 1],
            label: format!("make {}", buffer.label()),
        };
        device.run(&[launch])?;
        Ok(true)
    }

    fn table(&mut self, pattern: &Pattern, device: &dyn GpuDevice) -> Result<DeviceBuffer> {
        if let Some(known) = self.tables.get(pattern.table()) {
            return Ok(known.clone());
        }
        let data = pattern.table();
        let table = device.alloc(data.len() as u64, Owner::Other, "pattern")?;
        device.write(&table, 0, data)?;
        self.tables.insert(data.to_vec(), table.clone());
        Ok(table)
    }
}

/// Those of a launch that makes `len` of a pattern's bytes from `first` on, at byte `at` of a buffer.
fn scalars(pattern: &Pattern, first: usize, len: usize, at: u64) -> [u32; scalar::COUNT] {
    let mut scalars = [0; scalar::COUNT];
    scalars[scalar::AT] = (at / 4) as u32;
    scalars[scalar::BYTES] = len as u32;
    scalars[scalar::BLOCK_BYTES] = pattern.block_bytes() as u32;
    scalars[scalar::VARIANTS] = pattern.variants() - 1;
    scalars[scalar::SEED..][..2].copy_from_slice(&pattern.seed());
    scalars[scalar::BLOCK] = (first / pattern.block_bytes()) as u32;
    scalars[scalar::WORD] = (first / 4) as u32;
    scalars[scalar::BYTE] = (first % 4) as u32;
    scalars
}
