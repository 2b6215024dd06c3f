//! From the start of a process to a model's first logits: Qwen3-0.6B's shape in Q4_0 with a vocabulary of its size, from a
//! file in the page cache. The logits of every process are the same.

use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};
use rusty_backend::DeviceChoice;
use rusty_benches::vocabulary;
use rusty_engine::{Engine, EngineOptions};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Names the file in the process that opens it.
const FILE: &str = "RUSTY_OPENING_FILE";
const TOKENS: [u32; 4] = [7, 77, 777, 7777];

/// What the opened process does: load, compute, print.
fn open(path: &str) {
    let file = rusty_loader::open(path).expect("opens");
    let options = EngineOptions {
        device: DeviceChoice::Cpu,
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*file, &options).expect("engine");
    let pair = engine.tokenizer().and_then(|t| t.token_id("!!"));
    assert_eq!(pair, Some(256), "the vocabulary is there");
    let logits = engine
        .logits(&TOKENS, rusty_engine::AdapterSet::default())
        .expect("logits");
    let sum = logits
        .iter()
        .fold(0u32, |sum, l| sum.rotate_left(5) ^ l.to_bits());
    println!("{sum:08x}");
    // Giving memory back is not part of it.
    std::process::exit(0);
}

/// Time and output of a process that opens the file.
fn process(path: &Path) -> (Duration, String) {
    let own = std::env::current_exe().expect("a path");
    let start = Instant::now();
    let output = Command::new(own).env(FILE, path).output().expect("runs");
    let time = start.elapsed();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (time, String::from_utf8(output.stdout).expect("text"))
}

fn opening(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("model.gguf");
    vocabulary::save("qwen3-0.6b", "q4_0", &path);
    let (_, want) = process(&path);
    let mut group = c.benchmark_group("opening");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group.bench_function("process to first logits", |b| {
        b.iter_custom(|count| {
            let one = |_| {
                let (time, have) = process(&path);
                assert_eq!(have, want, "another process says something else");
                time
            };
            (0..count).map(one).sum()
        });
    });
    group.finish();
}

fn measured(c: &mut Criterion) {
    match std::env::var(FILE) {
        Ok(path) => open(&path),
        Err(_) => opening(c),
    }
}

criterion_group!(benches, measured);
criterion_main!(benches);
