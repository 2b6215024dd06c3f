//! How fast a GPU copies inside its memory, against which its kernels are held, and how fast weights reach it.

use rusty_backend::{GpuDevice, Owner, Result};
use std::time::Instant;

/// Bytes of a copy: more than caches hold.
const BYTES: u64 = 256 << 20;
/// Copies between two looks at the clock.
const COPIES: u32 = 20;
/// Passes of which the best counts.
const PASSES: u32 = 4;

/// Bytes read and written per second inside the device's memory.
///
/// # Errors
/// Those of the device.
pub fn inside(gpu: &dyn GpuDevice) -> Result<f64> {
    let bytes = size(gpu);
    let from = gpu.alloc(bytes, Owner::Other, "copied")?;
    let to = gpu.alloc(bytes, Owner::Other, "copy")?;
    let mut best = 0.0f64;
    for _ in 0..PASSES {
        gpu.synchronize()?;
        let start = Instant::now();
        for _ in 0..COPIES {
            gpu.copy(&from, 0, &to, 0, bytes)?;
        }
        gpu.synchronize()?;
        let moved = 2.0 * bytes as f64 * f64::from(COPIES);
        best = best.max(moved / start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Bytes that reach the device per second on the way that weights take, through the ring, from memory that is at hand.
///
/// # Errors
/// Those of the device.
pub fn to_device(gpu: &dyn GpuDevice) -> Result<f64> {
    let bytes = size(gpu);
    let to = gpu.alloc(bytes, Owner::Weights, "upload")?;
    let data = vec![1u8; bytes as usize];
    let mut best = 0.0f64;
    for _ in 0..PASSES {
        let start = Instant::now();
        gpu.write(&to, 0, &data)?;
        gpu.synchronize()?;
        best = best.max(bytes as f64 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn size(gpu: &dyn GpuDevice) -> u64 {
    BYTES.min(gpu.target().max_binding_bytes) & !3
}
