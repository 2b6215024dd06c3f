//! What was measured, beside what could be.

use crate::peak::Peak;
use rusty_benches::machine;
use std::fmt::Write;
use std::path::Path;

/// Rows of a whole run; fewer were filtered.
const ALL: usize = 16;

/// What operations work on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Floats,
    Bytes,
}

/// What a kernel has to read and to compute.
#[derive(Clone, Copy)]
pub struct Work {
    pub bytes: u64,
    pub operations: u64,
    pub kind: Kind,
}

/// What the machine reaches.
pub struct Bounds {
    pub threads: usize,
    /// Bytes per second.
    pub bandwidth: f64,
    pub peak: Option<Peak>,
}

impl Bounds {
    /// Seconds that the work takes at least, by bytes and by operations.
    fn least(&self, work: Work) -> (f64, Option<f64>) {
        let peak = self.peak.map(|p| match work.kind {
            Kind::Floats => p.floats,
            Kind::Bytes => p.bytes,
        });
        let operations = peak.map(|peak| work.operations as f64 / peak);
        (work.bytes as f64 / self.bandwidth, operations)
    }
}

/// The table of a run.
pub struct Report {
    bounds: Bounds,
    lines: Vec<String>,
}

impl Report {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            lines: vec![],
        }
    }

    /// Adds a kernel that took `seconds`.
    pub fn add(&mut self, name: &str, work: Work, seconds: f64) {
        let (bytes, operations) = self.bounds.least(work);
        let bound = operations.map_or(bytes, |o| o.max(bytes));
        let us = |s: f64| format!("{:.0}", s * 1e6);
        self.lines.push(format!(
            "| {name} | {} | {} | {} | {:.0}% |",
            us(seconds),
            us(bytes),
            operations.map_or("unknown".into(), us),
            bound / seconds * 100.0
        ));
    }

    /// Prints the table, and records it where nothing was left out.
    pub fn finish(&self) {
        let mut text = format!(
            "# Kernels beside their bounds\n\n{}, {} threads, {}, commit {}.\n\
             `cargo bench -p rusty-benches --bench kernels`; medians of ten samples, microseconds.\n\n\
             A loop reads {:.1} GB/s here",
            machine::cpu(),
            self.bounds.threads,
            machine::now(),
            machine::commit(),
            self.bounds.bandwidth / 1e9
        );
        if let Some(peak) = self.bounds.peak {
            let (floats, bytes) = (peak.floats / 1e9, peak.bytes / 1e9);
            let _ = write!(
                text,
                " and makes {floats:.0} GFLOPS on single precision, {bytes:.0} GOPS on bytes"
            );
        }
        text.push_str(
            ". Shares above 100% say that caches held part of it, or that the loop is not the fastest way to read.\n\n\
             | kernel | time | bytes allow | operations allow | share of the bound |\n|---|---|---|---|---|\n",
        );
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        println!("\n{text}");
        if self.lines.len() == ALL {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("record/kernels.md");
            std::fs::write(path, text).expect("the record is written");
        }
    }
}
