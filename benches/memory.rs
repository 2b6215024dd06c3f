//! What a 7B model takes: Mistral-7B's shape with random weights in Q4_0 and a full context of 4096 tokens, on the CPU. The
//! most that was ever resident, the file's mapped pages included, must stay under 6 GB, and what is held beyond weights and
//! cache under 100 MB.

use rusty_backend::{DeviceChoice, Target};
use rusty_compiler::KvFormat;
use rusty_engine::{Engine, EngineOptions, Prompt, Request};
use rusty_loader::ModelFile;
use std::process::Command;

/// Names the file in the process that is measured.
const FILE: &str = "RUSTY_MEMORY_FILE";
const CONTEXT: usize = 4096;
const ANSWER: usize = 8;
const MOST: u64 = 6_000_000_000;
const MOST_BESIDE: u64 = 100_000_000;

/// A line of the system's account of this process, in bytes.
fn account(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with(line)).expect("line");
    let kib = line
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse::<u64>().ok());
    kib.expect("a number") * 1024
}

/// What the plan says before anything is loaded: weights, cache and activations.
fn planned(file: &dyn ModelFile) -> u64 {
    let graph = rusty_graph::arch::build(file).expect("graph");
    let plan = rusty_compiler::compile(&graph, &Target::host_cpu()).expect("plan");
    let weights: u64 = plan.weights.iter().map(|w| w.bytes()).sum();
    weights + plan.kv_bytes_per_token(KvFormat::F16) * CONTEXT as u64 + plan.arena_bytes
}

fn measured(path: &str) {
    let file = rusty_loader::open(path).expect("opens");
    let planned = planned(&*file);
    assert!(planned < MOST, "the plan takes {planned} bytes");
    let options = EngineOptions {
        device: DeviceChoice::Cpu,
        context: Some(CONTEXT),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*file, &options).expect("engine");
    let loaded = account("VmHWM:");
    let tokens: Vec<u32> = (0..(CONTEXT - ANSWER) as u32)
        .map(|i| i * 7919 % engine.vocab())
        .collect();
    let request = Request {
        max_tokens: ANSWER,
        stop_at_end: false,
        ..Request::new(Prompt::Tokens(tokens))
    };
    let mut session = engine.session();
    let answer = session.generate(&request).expect("starts");
    let answer: Vec<_> = answer.map(|token| token.expect("a token")).collect();
    assert_eq!(answer.len(), ANSWER);
    let (peak, held) = (account("VmHWM:"), account("RssAnon:"));
    let stated = engine.memory();
    let weights = stated.resident_weights + stated.mapped_weights;
    let beside = held.saturating_sub(stated.resident_weights + stated.kv);
    let size = std::fs::metadata(path).expect("the file").len();
    let mb = |bytes: u64| bytes as f64 / 1e6;
    println!("tokens of context             {CONTEXT:>9}");
    println!("planned                       {:>9.1} MB", mb(planned));
    println!("the file                      {:>9.1} MB", mb(size));
    println!("weights                       {:>9.1} MB", mb(weights));
    println!("keys and values               {:>9.1} MB", mb(stated.kv));
    println!("held beside them              {:>9.1} MB", mb(beside));
    println!("most resident while loading   {:>9.1} MB", mb(loaded));
    println!("most resident ever            {:>9.1} MB", mb(peak));
    assert!(peak < MOST, "{peak} bytes were resident");
    assert!(
        beside < MOST_BESIDE,
        "{beside} bytes beside weights and cache"
    );
}

fn main() {
    if let Ok(path) = std::env::var(FILE) {
        return measured(&path);
    }
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("model.gguf");
    rusty_loader::random::save("mistral-7b", "q4_0", &path).expect("saved");
    let own = std::env::current_exe().expect("a path");
    let status = Command::new(own).env(FILE, &path).status().expect("runs");
    assert!(status.success());
}
