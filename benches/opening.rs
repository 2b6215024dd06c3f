//! From the start of a process to a model's first logits: Qwen3-0.6B's shape in Q4_0 with a vocabulary of its size, from a
//! file in the page cache. The logits of every process are the same.

use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};
use rusty_backend::DeviceChoice;
use rusty_engine::{Engine, EngineOptions};
use rusty_loader::gguf::Gguf;
use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::{Format, Meta};
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

/// Writes the model with as many made-up tokens as it has rows for: the alphabet of bytes, all pairs of it, and triples.
fn with_vocabulary(folder: &Path, path: &Path) {
    let plain = folder.join("plain.gguf");
    rusty_loader::random::save("qwen3-0.6b", "q4_0", &plain).expect("saved");
    let file = Gguf::open(&plain).expect("opens");
    let table = file.tensors.iter().find(|t| t.name == "token_embd.weight");
    let vocab = table.expect("a table").shape[0] as usize;
    let (mut tokens, mut merges) = (alphabet(), vec![]);
    let letters = tokens.clone();
    for known in 0.. {
        let left = tokens[known].clone();
        for right in &letters {
            if tokens.len() < vocab {
                merges.push(format!("{left} {right}"));
                tokens.push(format!("{left}{right}"));
            }
        }
        if tokens.len() == vocab {
            break;
        }
    }
    let list = |all: Vec<String>| all.iter().map(|t| Meta::from(t.as_str())).collect::<Meta>();
    let mut writer = GgufWriter::new("qwen3");
    writer.copy_keys(&file, &["tokenizer.ggml.model"]);
    writer.meta("tokenizer.ggml.model", "gpt2");
    writer.meta("tokenizer.ggml.pre", "qwen2");
    writer.meta("tokenizer.ggml.tokens", list(tokens));
    writer.meta("tokenizer.ggml.merges", list(merges));
    for t in &file.tensors {
        let shape: Vec<usize> = t.shape.iter().map(|d| *d as usize).collect();
        let format = Format::by_ggml_type(t.kind.id).expect("a format");
        writer.tensor(&t.name, format, &shape);
    }
    let mut next = file.tensors.iter();
    let mut data = |_: &str, out: &mut dyn std::io::Write| {
        let tensor = next.next().and_then(|t| file.tensor_bytes(t));
        out.write_all(&tensor.expect("its bytes"))
    };
    writer.save(path, &mut data).expect("saved");
}

/// The characters that stand for bytes in byte-level vocabularies (GPT-2's `bytes_to_unicode`).
fn alphabet() -> Vec<String> {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let own = (0..=255u8).filter(printable).map(char::from);
    let others = (0..=255u8).filter(|b| !printable(b)).zip(256u32..);
    let others = others.filter_map(|(_, c)| char::from_u32(c));
    own.chain(others).map(String::from).collect()
}

fn opening(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("model.gguf");
    with_vocabulary(folder.path(), &path);
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
