//! Adapters on the shapes of Qwen3-0.6B (random weights, Q4_0): rank 16 on all linear layers but the head, F16 tables, where
//! nothing else is said.
//!
//! * `swap`: attaching, weighting and detaching while an engine runs.
//! * `prepare`: what is done once for each adapter, and what its cache leaves of that.
//! * `step`: what rows cost beside adapters and with them, as tables; kinds of rows in turn.
//! * `kinds`: what kinds with small files take in memory and in time, as a table.

mod dora;
mod kinds;
mod preparation;
mod steps;
mod swap;
mod tables;

use criterion::{Criterion, criterion_group};
use rusty_backend::DeviceChoice;
use rusty_engine::{Engine, EngineOptions};

const SHAPE: &str = "qwen3-0.6b";
const FORMAT: &str = "q4_0";
const RANK: u32 = 16;

/// An engine on the CPU that has its file at hand.
fn engine() -> Engine {
    let file = rusty_loader::random::model(SHAPE, FORMAT).expect("shape");
    let options = EngineOptions {
        device: DeviceChoice::Cpu,
        context: Some(64),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*file, &options).expect("engine");
    engine.keep_base(file.into());
    engine
}

criterion_group!(benches, swap::swaps, preparation::preparation);

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    if tables::wants("step") {
        steps::print();
    }
    if tables::wants("kinds") {
        kinds::print();
    }
}
