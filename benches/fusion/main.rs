//! Chains of operations as Rusty fuses them, beside Burn and PyTorch op by op, and the traffic that fusion saves:
//! `cargo bench -p benches --bench fusion`.
//!
//! How they are compared says `fusion/mod.rs`. Burn is a program of its own (`benches/burn`), which is compiled when this
//! first runs and takes some minutes: its Flex back end on the CPU, its wgpu back end beside any GPU. PyTorch is the one
//! that `peers` installs: on CUDA beside any GPU where it has one, else on the CPU; the table says which.
//!
//! * `RUSTY_FUSION_DEVICE=DEVICE`: `cpu`, which is recorded in `benches/record/fusion.md`, or a GPU.
//! * `RUSTY_FUSION_ONLY=TEXT`: chains whose name holds the text; nothing is recorded.

mod traffic;

use rusty_backend::Device;
use rusty_benches::fusion::{Beside, Effort, Peers, Row, burn_program, compare};
use rusty_benches::machine;
use rusty_benches::python::Python;
use std::fmt::Write;
use std::path::Path;

/// A line of the table.
fn line(row: &Row) -> String {
    let us = |seconds: Option<f64>| seconds.map_or("".into(), |s| format!("{:.1}", s * 1e6));
    let ratio = |other: Option<f64>| other.map_or("".into(), |s| format!("{:.2}", s / row.own));
    let (burn, pytorch) = (row.burn.seconds, row.pytorch.seconds);
    format!(
        "| {} | {} | {} of {} | {} | {} | {} | {} | {} |",
        row.chain,
        row.rows,
        row.kernels,
        row.operations,
        us(Some(row.own)),
        us(burn),
        us(pytorch),
        ratio(burn),
        ratio(pytorch)
    )
}

/// On what a side ran.
fn place(name: &str, chain: &str, beside: &Beside) -> String {
    let trouble = &beside.trouble;
    assert!(trouble.is_none(), "{name} has no {chain}: {trouble:?}");
    format!(
        "{name} on {}",
        beside.device.as_deref().unwrap_or("nothing")
    )
}

fn main() {
    // Asked what there is (`--list`), or run as a test.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let only = std::env::var("RUSTY_FUSION_ONLY").ok();
    let choice = std::env::var("RUSTY_FUSION_DEVICE").unwrap_or("cpu".into());
    let device = Device::open(&choice.parse().expect("a device"), None).expect("a device");
    let peers = Peers::default().with_burn(&burn_program());
    let mut peers = peers.with_pytorch(&Python::ready());
    let mut table = String::from(
        "| chain | rows | kernels | Rusty (µs) | Burn (µs) | PyTorch (µs) | Burn / Rusty | PyTorch / Rusty |\n|---|---|---|---|---|---|---|---|\n",
    );
    let chains = only.as_deref().unwrap_or_default();
    let effort = Effort::default();
    let mut places = String::new();
    compare(&choice, &device, chains, effort, &mut peers, &mut |row| {
        let burn = place("Burn", &row.chain, &row.burn);
        places = burn + ", " + &place("PyTorch", &row.chain, &row.pytorch);
        let _ = writeln!(table, "{}", line(&row));
    });
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let Effort { rounds, timed, .. } = effort;
    let report = format!(
        "# Chains fused and op by op, {}\n\n{}, {threads} threads, device {}, {places}; commit {} (but for this file). `cargo bench -p benches --bench fusion`: \
         {rounds} rounds in turn of {timed} s, the middle of each and of all; answers agreed. Kernels: those that the chain and its gathers become, of as many operations. \
         Rusty gathers inputs from tables, which takes a kernel that the others do not have.\n\n{table}\n{}",
        machine::now(),
        machine::cpu(),
        device.target().name,
        machine::commit(),
        traffic::table()
    );
    println!("{report}");
    if only.is_none() && choice == "cpu" {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("record/fusion.md");
        std::fs::write(path, report).expect("the record");
    }
}
