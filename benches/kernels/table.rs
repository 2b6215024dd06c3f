//! The table of a run.

use rusty_backend::Device;
use rusty_benches::kernels::{ALL, Bounds, Row};
use rusty_benches::machine;
use std::fmt::Write;
use std::path::Path;

/// Where and between which bounds kernels run, and how they do.
pub struct Table {
    device: String,
    /// Whether a whole run is kept.
    recorded: bool,
    bounds: Bounds,
    lines: Vec<String>,
}

impl Table {
    pub fn new(device: &Device, bounds: Bounds) -> Self {
        let target = device.target();
        let device = match device {
            Device::Cpu(_) => format!("{}, {} threads", machine::cpu(), target.threads),
            Device::Gpu(_) => target.name.clone(),
        };
        Self {
            recorded: target.is_cpu(),
            device,
            bounds,
            lines: vec![],
        }
    }

    pub fn add(&mut self, row: &Row) {
        let us = |s: f64| format!("{:.0}", s * 1e6);
        self.lines.push(format!(
            "| {} | {} | {} | {} | {:.0}% | {:.2} |",
            row.kernel,
            us(row.seconds),
            us(row.bytes),
            row.operations.map_or("unknown".into(), us),
            row.share() * 100.0,
            row.rate() / 1e12
        ));
    }

    /// Prints the table, and records it where nothing was left out.
    pub fn finish(&self) {
        let mut text = format!(
            "# Kernels beside their bounds\n\n{}, {}, commit {}.\n\
             `cargo bench -p benches --bench kernels`; medians of ten samples, microseconds.\n\n",
            self.device,
            machine::now(),
            machine::commit()
        );
        let bandwidth = self.bounds.bandwidth / 1e9;
        if let Some(peak) = self.bounds.peak {
            let [floats, brains, bytes] = [peak.floats, peak.brains, peak.bytes].map(|p| p / 1e9);
            let _ = writeln!(
                text,
                "A loop reads {bandwidth:.1} GB/s here and makes {floats:.0} GFLOPS on single precision, {brains:.0} on BF16, {bytes:.0} GOPS on bytes. \
                 Shares above 100% say that caches held part of it, or that the loop is not the fastest way to read."
            );
        } else {
            let _ = writeln!(
                text,
                "{bandwidth:.1} GB/s are read and written here where nothing else is done. A time is a whole step's, with its \
                 launches and the way back to the host."
            );
        }
        text.push_str(
            "\n| kernel | time | bytes allow | operations allow | share of the bound | operations (T/s) |\n|---|---|---|---|---|---|\n",
        );
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        println!("\n{text}");
        if self.recorded && self.lines.len() == ALL {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("record/kernels.md");
            std::fs::write(path, text).expect("the record is written");
        }
    }
}
