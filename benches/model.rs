//! Whole models on the CPU. Every measured answer is checked against the one that is expected.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rusty_backend::DeviceChoice;
use rusty_engine::{AdapterSet, Engine, EngineOptions, Message, Prompt, Request, demo};
use rusty_loader::quantize::{Target, quantize};
use std::hint::black_box;

const QUESTION: &str = "Find users older than 30";
const ANSWER: &str = "You could look through the users and keep those older than 30.";

fn engine() -> Engine {
    let options = EngineOptions {
        device: DeviceChoice::Cpu,
        ..EngineOptions::default()
    };
    Engine::load(&*demo::model().expect("demo"), &options).expect("engine")
}

/// From bytes to an engine that can answer.
fn load(c: &mut Criterion) {
    c.bench_function("load/demo", |b| b.iter(|| black_box(engine())));
}

/// A short chat turn, prompt and answer.
fn answer(c: &mut Criterion) {
    let engine = engine();
    let request = Request::new(Prompt::Chat(vec![Message::new("user", QUESTION)]));
    let mut group = c.benchmark_group("answer");
    group.throughput(Throughput::Elements(15));
    group.bench_function("demo", |b| {
        b.iter_batched(
            || engine.session(),
            |mut session| {
                let answer = session.generate(&request).expect("generation");
                let text: String = answer.map(|t| t.expect("token").text).collect();
                assert_eq!(text, ANSWER);
            },
            BatchSize::PerIteration,
        );
    });
}

/// All logits of a prompt of 512 tokens.
fn prefill(c: &mut Criterion) {
    let engine = engine();
    let tokens: Vec<u32> = (0..512).map(|i| 300 + i * 31 % 1500).collect();
    let want = engine.logits(&tokens, AdapterSet::BASE).expect("logits");
    let mut group = c.benchmark_group("logits");
    group.throughput(Throughput::Elements(512)).sample_size(20);
    group.bench_function("demo", |b| {
        b.iter(|| {
            let have = engine.logits(&tokens, AdapterSet::BASE).expect("logits");
            assert!(have == want, "the same tokens gave other logits");
        });
    });
}

/// A layer-sized model in BF16, quantized in memory.
fn quantizing(c: &mut Criterion) {
    let mut group = c.benchmark_group("quantize");
    group.sample_size(10);
    for (name, target) in [("int4", Target::Int4), ("int8", Target::Int8)] {
        group.bench_function(name, |b| {
            b.iter_batched(
                || rusty_loader::random::model("qwen3-tiny", "bf16").expect("shape"),
                |file| {
                    let file = quantize(file, target, &|_, _| {}).expect("quantized");
                    let weight = file.tensor("blk.0.ffn_up.weight").expect("weight");
                    assert_eq!(weight.format, target.format());
                    file
                },
                BatchSize::PerIteration,
            );
        });
    }
}

criterion_group!(benches, load, answer, prefill, quantizing);
criterion_main!(benches);
