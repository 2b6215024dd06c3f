//! Kernels one by one, each beside its bound: `cargo bench -p benches --bench kernels`.
//!
//! Each stands beside the longer of two times: its bytes at the bandwidth that a loop reads memory with, or that a GPU copies
//! with, and its operations at the rate that a loop reaches in registers, both measured in the same run. A loop's bandwidth
//! is no law: caches hold part of what is read again, and products read faster at times. What GPUs could compute is not
//! measured; the rates of operations stand there instead. Without a filter the CPU's table goes to
//! `benches/record/kernels.md`.
//!
//! * `RUSTY_KERNELS_DEVICE=DEVICE`: `cpu`, which is recorded, or a GPU, whose kernels are larger ones.

mod table;

use criterion::Criterion;
use rusty_backend::Device;
use rusty_benches::kernels::{Bounds, Sizes, measure};
use table::Table;

fn main() {
    // `cargo test --benches` runs every bench, to see that it builds.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let choice = std::env::var("RUSTY_KERNELS_DEVICE").unwrap_or("cpu".into());
    let device = Device::open(&choice.parse().expect("a device"), None).expect("a device");
    let bounds = Bounds::of(&device).expect("a device that copies");
    let mut table = Table::new(&device, bounds);
    let sizes = Sizes::of(&device);
    let criterion = Criterion::default().configure_from_args();
    measure(device, bounds, sizes, criterion, &mut |row| table.add(&row));
    table.finish();
}
