//! `rusty devices`: what there is, and why the rest is not.

use crate::args::Devices;
use anyhow::Result;
use serde_json::json;
use std::io::Write;

/// Prints one line per device.
pub fn run(options: &Devices) -> Result<()> {
    let devices = rusty_backend::discover();
    let mut out = std::io::stdout().lock();
    if options.json {
        let list: Vec<_> = devices
            .iter()
            .map(|d| {
                json!({"choice": d.choice, "name": d.name, "memory_bytes": d.memory_bytes, "absent": d.absent})
            })
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
        return Ok(());
    }
    for d in &devices {
        match &d.absent {
            None => writeln!(
                out,
                "{:<8} {} ({} MiB)",
                d.choice,
                d.name,
                d.memory_bytes >> 20
            )?,
            Some(reason) => writeln!(out, "{:<8} absent: {reason}", d.choice)?,
        }
    }
    Ok(())
}
