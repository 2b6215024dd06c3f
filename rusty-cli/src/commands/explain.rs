//! `rusty explain`: what the compiler makes of a model.

use crate::args::{Explain, Gpu};
use crate::{gpu, model};
use anyhow::Result;
use rusty_compiler::plan::Kernel;
use serde_json::{Value, json};
use std::io::Write;

/// Prints graph, passes, plan and totals, or totals and kernels as JSON.
pub fn run(options: &Explain) -> Result<()> {
    let described = options.target.as_deref().map(model::target).transpose()?;
    let file = model::open_or_outline(options.model.as_deref(), &options.random, &options.rope)?;
    let graph = rusty_graph::arch::build(&*file)?;
    let target = match described {
        Some(target) => target,
        None => {
            let device = gpu::open(&options.device, None, &Gpu::default())?;
            rusty_compiler::planning_facts(device.target())
        }
    };
    let report = rusty_compiler::explain(&graph, &target)?;
    let mut out = std::io::stdout().lock();
    if !options.json {
        writeln!(out, "== graph\n{graph}\n{}", report.text())?;
        return Ok(());
    }
    let passes: Vec<Value> = report
        .passes
        .iter()
        .map(|p| json!({"name": p.name, "kernels": p.kernels, "changed": p.text.is_some()}))
        .collect();
    let kernels: Vec<Value> = report
        .plan
        .kernels
        .iter()
        .enumerate()
        .map(|(at, k)| kernel(k, report.plan.kernel_bytes(at)))
        .collect();
    let object = json!({
        "arch": report.plan.arch,
        "target": report.plan.target.name,
        "nodes": report.nodes,
        "dispatches_per_token": report.dispatches_per_token,
        "unfused_dispatches_per_token": report.unfused_dispatches_per_token,
        "dispatches_with_adapters": report.dispatches_with_adapters,
        "bytes_per_token": report.bytes_per_token,
        "activation_bytes_per_token": report.activation_bytes,
        "unfused_activation_bytes_per_token": report.unfused_activation_bytes,
        "predicted_tokens_per_second": report.prediction.map(|p| p.tokens_per_second()),
        "arena_bytes": report.plan.arena_bytes,
        "layers": report.plan.kv.len(),
        "passes": passes,
        "kernels": kernels,
    });
    writeln!(out, "{}", serde_json::to_string_pretty(&object)?)?;
    Ok(())
}

fn kernel(kernel: &Kernel, (read, written): (u64, u64)) -> Value {
    let variants: Vec<Value> = kernel
        .variants
        .iter()
        .map(|v| {
            json!({
                "name": v.implementation.name(),
                "rows": [v.rows.start(), v.rows.end()],
                "dispatches": v.dispatches,
            })
        })
        .collect();
    json!({"name": kernel.name, "bytes_read": read, "bytes_written": written, "variants": variants})
}
