//! The traffic that fusion saves, by plan: what is stated of bytes needs no device.

use rusty_backend::Target;
use rusty_compiler::explain;
use std::fmt::Write;

const SHAPES: [&str; 3] = ["qwen3-0.6b", "llama-3.2-1b", "llama-3-8b"];
const TARGETS: [&str; 3] = ["avx512", "h200", "vulkan"];

/// Bytes of activations that a decoded token moves.
pub fn table() -> String {
    let mut text = String::from(
        "Activations that a decoded token moves, read and written, keys and values of the token included, by plan \
         (`rusty explain --random SHAPE --target TARGET`):\n\n\
         | shape | target | op by op | fused | saved | launches |\n|---|---|---|---|---|---|\n",
    );
    for shape in SHAPES {
        let file = rusty_loader::random::outline(shape, "q4_0").expect("a shape");
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        for name in TARGETS {
            let target = Target::named(name).expect("a target");
            let report = explain(&graph, &target).expect("report");
            let (fused, unfused) = (report.activation_bytes, report.unfused_activation_bytes);
            let _ = writeln!(
                text,
                "| {shape} | {name} | {} kB | {} kB | {:.0}% | {} of {} |",
                unfused / 1000,
                fused / 1000,
                100.0 * (1.0 - fused as f64 / unfused as f64),
                report.dispatches_per_token,
                report.unfused_dispatches_per_token
            );
        }
    }
    text
}
