//! How fast a device copies inside its memory, against which speeds are held.

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
