//! How fast a device copies inside its memory, against which speeds are held, and how fast weights reach it.

use anyhow::{Context, Result};
use rusty_backend::{Device, Owner};
use std::time::Instant;

/// Bytes of a copy: more than caches hold.
const BYTES: u64 = 256 << 20;
/// Copies between two looks at the clock.
const COPIES: u32 = 20;

/// Bytes read and written per second, the best of some passes.
pub fn copies(choice: &str) -> Result<f64> {
    let device = Device::open(&choice.parse()?, None)?;
    let gpu = device.gpu().context("is no GPU")?;
    let bytes = BYTES.min(gpu.target().max_binding_bytes) & !3;
    let from = gpu.alloc(bytes, Owner::Other, "copied")?;
    let to = gpu.alloc(bytes, Owner::Other, "copy")?;
    let mut best = 0.0f64;
    for _ in 0..4 {
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

/// Bytes that reach the device per second through the ring that weights go through, from memory that is at hand.
pub fn uploads(choice: &str) -> Result<f64> {
    let device = Device::open(&choice.parse()?, None)?;
    let gpu = device.gpu().context("is no GPU")?;
    let bytes = BYTES.min(gpu.target().max_binding_bytes) & !3;
    let to = gpu.alloc(bytes, Owner::Other, "upload")?;
    let data = vec![1u8; bytes as usize];
    let mut best = 0.0f64;
    for _ in 0..4 {
        let start = Instant::now();
        gpu.write(&to, 0, &data)?;
        gpu.synchronize()?;
        best = best.max(bytes as f64 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}
