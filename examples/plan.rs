//! Compiles the demo model for machines that are not there, and compares.
//!
//! `cargo run --release -p rusty-examples --example plan`

use anyhow::{Context, Result};
use rusty_backend::Target;
use rusty_engine::demo;
use std::io::Write;

fn main() -> Result<()> {
    let file = demo::model()?;
    let graph = rusty_graph::arch::build(&*file)?;
    let mut out = std::io::stdout().lock();
    for name in Target::names() {
        let target = Target::named(&name).context("a named target")?;
        let report = rusty_compiler::explain(&graph, &target)?;
        writeln!(
            out,
            "{name:>10}: {} dispatches per token instead of {}, {} bytes read and written",
            report.dispatches_per_token,
            report.unfused_dispatches_per_token,
            report.bytes_per_token
        )?;
    }
    Ok(())
}
